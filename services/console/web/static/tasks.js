// The page of tasks, and of one batch: filters, live rows, and acting on many.
import "./rights.js";
import { bill } from "./bill.js";
import { Bulk, Selection } from "./bulk.js";
import { byId, fill, h } from "./dom.js";
import { count, seconds } from "./format.js";
import { TaskTable } from "./table.js";

const { batch } = byId("tasks-page").dataset;
const selection = new Selection(() => bulk.show());
const marks = [];

// How far a batch is, and how long the rest will take at the pace of the last minutes.
function showBatch({ counts, total }) {
  if (!batch) return;
  const done = counts.completed + counts.failed + counts.cancelled;
  const now = Date.now();
  marks.push([now, done]);
  while (marks.length > 2 && now - marks[0][0] > 180_000) marks.shift();
  const [[since, before]] = marks;
  const pace = (done - before) / Math.max(1, (now - since) / 1000);
  const parts = [`uploaded ${count(total)}`, `${count(done)} done`];
  if (counts.failed) parts.push(`${count(counts.failed)} failed`);
  if (done < total) parts.push(pace > 0 ? `about ${seconds(Math.max(1, Math.round((total - done) / pace)))} left` : "time left not known yet");
  fill(byId("batch-says"), parts.join(", "));
  byId("batch-part").value = total ? done / total : 0;
}

const table = new TaskTable({
  selection,
  fixed: batch ? { label: `batch=${batch}` } : {},
  onDraw: () => bulk.show(),
  onAgents: (agents) => { bulk.agents = agents.map((agent) => agent.name); },
  onSummary: showBatch,
  onFilter: () => selection.replace([]),
});
const bulk = new Bulk(() => table, selection);
if (byId("bill")) bill(byId("bill"), () => table.refresh());
table.start();
