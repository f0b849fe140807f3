"""Sweeper: finds attempts whose lease ended, asks the runner about them, and recovers what died; removes what is old.

Reads    tasks, task_attempts, attempt_results, agents, queue_state
Writes   tasks and task_attempts: extend, requeue, give up; recovered_results; duties. Where `keep_days` is set it
         removes finished tasks with all that is theirs
Hears    nothing; it polls
Sends    task_ready, task_changed, result_recovered, cancel_requested, attempt_settled
Calls    the Jobs API: get a run, its output
If down  leases of dead runs stay until it is back; nothing else waits for it. One replica works at a
         time per duty, the others stand by. Two at once are harmless: every write is fenced.
"""
