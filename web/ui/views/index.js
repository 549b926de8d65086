/** views maps the name of a route to the function that loads its module, which exports the component by default. */
export const views = {
  overview: () => import('./overview.js'),
  ask: () => import('./ask.js'),
  mesh: () => import('./mesh.js'),
  agents: () => import('./agents.js'),
  agent: () => import('./agent.js'),
  calls: () => import('./calls.js'),
  events: () => import('./events.js'),
  tasks: () => import('./tasks.js'),
  trust: () => import('./trust.js'),
  network: () => import('./network.js'),
  node: () => import('./node.js'),
};

/** nav is the navigation in its order: name, title and group. The first four and "More" are the bar of a phone. */
export const nav = [
  { name: 'overview', title: 'Overview', phone: true },
  { name: 'ask', title: 'Ask', phone: true },
  { name: 'mesh', title: 'Mesh', phone: true },
  { name: 'agents', title: 'Agents', phone: true },
  { name: 'calls', title: 'Calls' },
  { name: 'events', title: 'Events' },
  { name: 'tasks', title: 'Tasks' },
  { name: 'trust', title: 'Trust' },
  { name: 'network', title: 'Network' },
  { name: 'node', title: 'Node' },
];
