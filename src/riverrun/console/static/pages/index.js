// All pages of the console. A page is a file whose default export is a component; it receives
// { params, query }. It is loaded when it is opened first.
//
//   id       the name used by link()
//   path     below /ui/{cluster}/; :names become params
//   title    a text, or a function of the params
//   section  where the navigation shows the page; pages without a section are not in it
//   parent   the id of the page above it in the breadcrumbs
//   icon     a name of lib/icons.js
//   words    further words under which the palette finds the page

const topic = (params) => params.topic;

export const pages = [
  { id: "overview", path: "overview", title: "Overview", section: "Cluster", icon: "overview", words: "health home start", load: () => import("./overview.js") },
  { id: "topics", path: "topics", title: "Topics", section: "Cluster", icon: "topics", words: "create list", load: () => import("./topics.js") },
  { id: "topic", path: "topics/:topic", title: topic, parent: "topics", load: () => import("./topic.js") },
  { id: "messages", path: "topics/:topic/messages", title: "Messages", parent: "topic", load: () => import("./messages.js") },
  { id: "message", path: "topics/:topic/messages/:partition/:offset", title: (params) => `${params.partition}:${params.offset}`, parent: "messages", load: () => import("./message.js") },
  { id: "groups", path: "groups", title: "Groups", section: "Cluster", icon: "groups", words: "consumer lag", load: () => import("./groups.js") },
  { id: "group", path: "groups/:group", title: (params) => params.group, parent: "groups", load: () => import("./group.js") },
  { id: "nodes", path: "nodes", title: "Nodes", section: "Cluster", icon: "nodes", words: "brokers disk traffic", load: () => import("./nodes.js") },
  { id: "node", path: "nodes/:node", title: (params) => `Node ${params.node}`, parent: "nodes", load: () => import("./node.js") },

  { id: "quorum", path: "quorum", title: "Quorum", section: "Operate", icon: "quorum", words: "controller raft voters", load: () => import("./quorum.js") },
  { id: "timeline", path: "timeline", title: "Timeline", section: "Operate", icon: "timeline", words: "history elections changes", load: () => import("./timeline.js") },
  { id: "moves", path: "moves", title: "Moves", section: "Operate", icon: "moves", words: "balance reassign partitions", load: () => import("./moves.js") },
  { id: "transactions", path: "transactions", title: "Transactions", section: "Operate", icon: "transactions", words: "hanging producers", load: () => import("./transactions.js") },
  { id: "transaction", path: "transactions/:id", title: (params) => params.id, parent: "transactions", load: () => import("./transactions.js") },
  { id: "pipelines", path: "pipelines", title: "Pipelines", section: "Operate", icon: "pipelines", words: "spark queries", load: () => import("./pipelines.js") },
  { id: "pipeline", path: "pipelines/:name", title: (params) => params.name, parent: "pipelines", load: () => import("./pipelines.js") },
  { id: "reports", path: "reports", title: "Reports", section: "Operate", icon: "reports", words: "chaos audit replica", load: () => import("./reports.js") },
  { id: "report", path: "reports/:name", title: (params) => params.name, parent: "reports", load: () => import("./reports.js") },

  { id: "users", path: "users", title: "Users", section: "Security", icon: "users", words: "scram passwords", load: () => import("./users.js") },
  { id: "acls", path: "acls", title: "ACLs", section: "Security", icon: "acls", words: "access rights permissions why", load: () => import("./acls.js") },
  { id: "quotas", path: "quotas", title: "Quotas", section: "Security", icon: "quotas", words: "limits throttle", load: () => import("./quotas.js") },
];

export const sections = ["Cluster", "Operate", "Security"];

export const titleOf = (page, params) => (typeof page.title === "function" ? page.title(params) : page.title);
