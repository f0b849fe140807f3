"""Several tasks in one run, in real processes: paid once, and a run that is killed spends only what it had begun."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.batch import StackUser, page
from tests.support.stack import StackProcess

pytestmark = pytest.mark.timeout(600)
TASKS = 6


@pytest.fixture
def user(queue_stack: StackProcess) -> Iterator[StackUser]:
    user = StackUser(queue_stack)
    yield user
    user.mend()
    user.close()


def test_a_packed_run_carries_its_tasks_and_a_killed_one_gives_the_rest_back(user: StackUser) -> None:
    agent = user.agent("packing-agent", tasks_per_run=TASKS, max_attempts=2, lease_seconds=5, paused=True)
    user.break_it(api="serving.chat", kind="delay", seconds=1.0)
    batch = user.submit(agent, user.upload([page(number) for number in range(TASKS)]))
    user.ask("POST", f"/api/v1/agents/{agent}/resume")
    user.wait(lambda: user.counts(batch)["completed"] > 0, 120)
    user.working().kill()
    tasks = user.ended(batch, 240)
    assert Counter(task["status"] for task in tasks) == {"completed": TASKS}
    runs = [[each["run_id"] for each in task["attempts"] if each["run_id"]] for task in tasks]
    assert len({run for of_task in runs for run in of_task}) < TASKS, "the tasks did not share their runs"
    given_back = [event for task in tasks for event in task["events"] if event["verb"] == "requeue"]
    begun = [event for event in given_back if event["reason"] != "run_ended_before_turn"]
    assert len(given_back) > len(begun), "nothing was waiting for its turn when the run was killed"
    assert len(begun) <= 1, "only one attempt had its turn when the run was killed"
    user.check_invariants()
