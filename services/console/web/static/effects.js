// What a change of an agent's settings will do, said before it is saved; from how its limits are used right now.
import { count } from "./format.js";
import { plain } from "./words.js";

const tasks = (number) => `${count(number)} task${number === 1 ? "" : "s"}`;

const SAID = {
  max_concurrent_tasks(agent, most) {
    const { running, waiting } = agent.state;
    if (most === null) return `No limit of tasks any more: ${waiting ? `${tasks(waiting)} that wait may start at once` : "whatever comes starts at once"}.`;
    if (most === 0) return `Nothing new starts; ${tasks(running)} that run go on.`;
    if (running > most) return `${count(running)} run now: nothing new starts until fewer than ${count(most)} do. None is stopped.`;
    const more = Math.min(waiting, most - running);
    return `${count(running)} run now: ${more ? `${tasks(more)} of ${count(waiting)} waiting may start at once` : waiting ? "none of those that wait may start" : "nothing waits"}.`;
  },
  max_tpm(agent, most) {
    const used = agent.state.reserved_tpm + agent.state.used_tpm;
    if (most === null) return "No limit of tokens per minute any more.";
    if (most === 0) return "Nothing new starts: no task fits 0 tokens per minute.";
    return used > most ? `${count(used)} tokens per minute are in use: nothing new starts until it fits ${count(most)}.` : `${count(used)} tokens per minute are in use: ${count(most - used)} are left.`;
  },
  daily_budget: (agent, most) => (most === null ? "No daily budget any more." : `At $${most} a UTC day nothing new starts; what runs goes on.`),
  monthly_budget: (agent, most) => (most === null ? "No monthly budget any more." : `At $${most} a UTC month nothing new starts; what runs goes on.`),
  backfill: (agent, is) => (is ? "A smaller task may start before one that waits for room, as often as the limit allows." : "Strictly in order: nobody overtakes a task that waits for room."),
  fair_share: (agent, is) => (is ? "Inside a priority, customers take turns by their weights." : "Inside a priority, first come, first served."),
  tasks_per_run: (agent, number) => (number > 1 ? `One run carries up to ${count(number)} attempts; each keeps its own lease, result and cost.` : "Each attempt has a run of its own."),
  lease_seconds: (agent, number) => `From the next claim on: silence of ${count(number)} seconds makes the sweeper ask about a run.`,
  max_attempts: (agent, number) => `For tasks that are accepted from now on: given up after ${count(number)} attempts.`,
  max_run_seconds: (agent, number) => `A run that lives longer than ${count(number)} seconds is cancelled.`,
  circuit_failures: (agent, number) => (number === null ? "Failures never stop this agent." : `${count(number)} different tasks that fail in a row stop this agent for a while.`),
  learn_estimates: (agent, is) => (is ? "Estimates come from what was measured, once there is enough of it." : "Estimates come from the settings only."),
};

// One sentence for each setting that the change brings.
export const effects = (agent, change) => Object.entries(change).map(([name, value]) => SAID[name]?.(agent, value) ?? `${plain(name)}: ${JSON.stringify(agent[name])} → ${JSON.stringify(value)}.`);
