"""The rule-based stand-in for a language model: reads a document by rules and never invents anything.

Every value it gives is written in the document, and comes with the quote it was read from. What no rule finds
stays empty. It takes the same prompt and answers in the same schema as a real model would.
"""
