"""Versions of the workflow that could be deployed next: two that break what waits, and one that does not."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from services.underwriting_worker import messages
    from services.underwriting_worker.messages import NoteEvent, RunTool
    from services.underwriting_worker.workflows import LoanUnderwritingWorkflow
    from shared.contract.underwriting import WORKFLOW, RunStart


class _Changed(LoanUnderwritingWorkflow):
    async def _note(self) -> None:
        note = NoteEvent(**self._here(), name="agent.turn_announced", key=str(self._turn))
        await self._record(messages.note_event, note)


@workflow.defn(name=WORKFLOW)
class ExtraStep(_Changed):
    """A new step that no marker guards."""

    @workflow.init
    def __init__(self, start: RunStart) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: RunStart) -> str:
        return await super().run(start)

    async def _gather(self) -> None:
        await self._note()
        await super()._gather()


@workflow.defn(name=WORKFLOW)
class OtherOrder(_Changed):
    """The same steps in another order."""

    @workflow.init
    def __init__(self, start: RunStart) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: RunStart) -> str:
        return await super().run(start)

    async def _run_tools(self, calls: list[RunTool]) -> None:
        for call in calls:
            await self._run_tool(call)


@workflow.defn(name=WORKFLOW)
class PatchedStep(_Changed):
    """The new step behind a marker: what began before it goes on as it was."""

    @workflow.init
    def __init__(self, start: RunStart) -> None:
        super().__init__(start)

    @workflow.run
    async def run(self, start: RunStart) -> str:
        return await super().run(start)

    async def _gather(self) -> None:
        # An answer is remembered for the whole run: one marker for each turn lets later turns take the new step.
        if workflow.patched(f"announce-turn-{self._turn}"):
            await self._note()
        await super()._gather()
