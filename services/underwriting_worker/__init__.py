"""Underwriting worker: gathers evidence about a loan request, recommends, waits for a person, and keeps the record.

Reads    agent_ops.*, agent_policy.underwriting_policy_limits, model_prices
Writes   agent_ops: runs, messages, tool calls, decisions, events, metrics; cost_entries of its model calls
Hears    nothing; Temporal hands it work
Sends    nothing
Calls    Temporal, the model (OpenAI protocol), the sources of evidence
If down  runs wait where they are, timers and decisions included; any worker goes on. Any number of replicas.
"""
