"""What an agent needs to be one: `run_agent(handler)` does everything around the handler.

The handler gets a context (its input, the document, the model, progress) and returns an `AgentResult`.
The kit reads the input, keeps the lease by heartbeats, traces to MLflow, stores the result row, and
posts the signed callback, whatever happens. A handler says what cannot work with `RejectedError` and
what may work later with `TransientError`; every other exception is a failure that is tried again.
"""

from shared.agent_kit.context import AgentContext, AgentResult
from shared.agent_kit.model import ModelAnswer
from shared.agent_kit.running import run_agent
from shared.agent_kit.warming import warm_up
from shared.contract.errors import RejectedError, TransientError

__all__ = [
    "AgentContext",
    "AgentResult",
    "ModelAnswer",
    "RejectedError",
    "TransientError",
    "run_agent",
    "warm_up",
]
