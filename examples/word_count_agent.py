"""A whole agent in one file: counts the words of a PDF, and asks the model for a title.

A job run starts it with `--task_id=… --attempt_id=…`; everything around the handler is the kit's.
"""

import sys

import pypdfium2

from shared.agent_kit import AgentContext, AgentResult, run_agent


async def count_words(context: AgentContext) -> AgentResult:
    """The handler: reads the task's document, reports progress, returns what it found."""
    words: list[str] = []
    async with context.open_document() as path:
        pdf = pypdfium2.PdfDocument(path)
        for number, page in enumerate(pdf, start=1):
            words += page.get_textpage().get_text_bounded().split()
            context.heartbeat(number, len(pdf), "counting")
        pdf.close()
    question = f"Give this text a title: <document>{' '.join(words[:500])}</document>"
    answer = await context.model.complete([{"role": "user", "content": question}])
    return AgentResult({"words": len(words), "title": answer.text[:200]}, pages=number)


def main(argv: list[str] | None = None) -> int:
    """The entry point of the job's wheel task."""
    return run_agent(count_words, argv)


if __name__ == "__main__":
    sys.exit(main())
