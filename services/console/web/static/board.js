// The overview: totals, charts, agents, the system, uploads, and the newest tasks.
import "./rights.js";
import { Agents } from "./agents.js";
import { api } from "./api.js";
import { bill } from "./bill.js";
import { Charts } from "./charts.js";
import { byId, fill, h } from "./dom.js";
import { plain } from "./words.js";
import { TaskTable } from "./table.js";
import { offerAgents, Uploads } from "./upload.js";

const agents = new Agents(byId("agents"), () => table.refresh());

async function system() {
  const { services, agents: queue } = await api("/state");
  const said = ({ alive, listener }) => (alive ? `${alive} alive${listener ? `, hears ${listener === "live" ? "live" : "by polling"}` : ""}` : "none alive");
  const state = ({ alive, listener }) => (alive ? listener ?? "live" : "away");
  const leases = queue.reduce((sum, agent) => sum + agent.running, 0);
  fill(byId("system"), ...services.map((each) => h("li", { "data-state": state(each) }, plain(each.service), " ", h("small", {}, said(each)))), h("li", {}, "leases held ", h("small", {}, String(leases))));
}

const charts = new Charts(byId("charts"), () => table.filters);
const table = new TaskTable({
  empty: "No tasks yet. Drop a PDF above, and watch it being read.",
  onAgents: (list) => { agents.show(list); offerAgents(agents.names); },
  onPoll: () => { system().catch(() => {}); charts.refresh(); },
  onFilter: () => charts.refresh(),
});

new Uploads(() => table.refresh());
bill(byId("bill"), () => table.refresh());
table.start();
