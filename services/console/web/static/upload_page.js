// The page of uploads: a batch may be gone on with after a broken connection, a closed tab or a restart.
import "./rights.js";
import { api } from "./api.js";
import { byId, fill, h, notice } from "./dom.js";
import { count } from "./format.js";
import { offerAgents, Uploads } from "./upload.js";

const uploads = new Uploads(() => {}, new URLSearchParams(location.search).get("batch"));

function offer() {
  const { id, done, known } = uploads.interrupted ?? {};
  const place = byId("resume");
  place.hidden = !id;
  if (!id) return;
  fill(place, h("b", {}, "A batch was interrupted"), h("p", {}, `${count(done)} of ${count(known)} files are submitted. Choose the same files again to go on: what is submitted is left out. `,
    h("a", { href: `/batches/${id}` }, "Show the batch"), " ", h("button", { type: "button", class: "quiet", onclick: () => { uploads.forget(); offer(); } }, "Forget it")));
}

offer();
api("/agents").then(({ agents }) => offerAgents(agents.map((agent) => agent.name)), (error) => notice(error.message));
