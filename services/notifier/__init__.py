"""Notifier: pushes every change of a task to the browsers that look, within a second.

Reads    task_overview, queue_state, task_events, and totals by filter
Writes   nothing but its own replica row
Hears    task_changed, cost_changed, config_changed, on one connection for all browsers
Sends    nothing
If down  browsers go on by polling the console, and say so. Any number of replicas; each knows only its own browsers.
"""
