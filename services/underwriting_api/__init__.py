"""Underwriting API: takes loan requests and decisions in, and shows every run with its evidence and its policy.

Reads    agent_ops.*, agent_policy.underwriting_policy_limits
Writes   agent_ops: new runs, decisions as they arrive and what became of them, wishes to cancel
Hears    nothing
Sends    nothing
Calls    Temporal: start, the decision as an update, cancel
If down  nobody sees the pages and no decision comes in; runs go on waiting. What was taken in is delivered by
         any replica, also when Temporal or every worker was away at the time.
"""
