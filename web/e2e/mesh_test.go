package e2e

import (
	"fmt"
	"testing"

	"github.com/chromedp/cdproto/emulation"
)

// TestMesh: the picture of the mesh and its table show the nodes, and the keyboard chooses and opens one.
func TestMesh(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/mesh")
	p.waitText("[data-testid=coverage]", fmt.Sprintf("%d nodes", len(mesh.Members)))
	p.wait("the table has all nodes", fmt.Sprintf(`document.querySelectorAll('[data-testid="mesh-nodes"] tbody tr').length === %d`, len(mesh.Members)))
	p.eval(`document.querySelector('[data-testid="mesh-canvas"]').focus(); 0`)
	key := func(name string) {
		p.eval(`document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: ` + quote(name) + `, bubbles: true})); 0`)
	}
	key("ArrowRight") // the own node
	p.waitText("[data-testid=mesh-node]", "This node")
	p.wait("its agents", `document.querySelector('[data-testid="mesh-agents"] li a, [data-testid="mesh-agents"] [data-status="empty"]')`)
	for _, arrow := range []string{"ArrowRight", "ArrowLeft", "ArrowUp", "ArrowDown"} { // in one of them is a node
		key(arrow)
		p.eval(`new Promise((r) => requestAnimationFrame(() => setTimeout(r, 50)))`)
		if p.eval(`document.querySelector('[data-testid="mesh-node"] h2').innerText`) != "node-1" {
			break
		}
	}
	p.wait("another node is chosen", `document.querySelector('[data-testid="mesh-node"] h2').innerText !== 'node-1'`)
	key("Enter")
	p.wait("Enter leads to the chosen node", `document.activeElement.id === 'mesh-side'`)
	p.click("[data-testid=mesh-table-of] button:last-child")
	p.wait("the connections", `document.querySelectorAll('[data-testid="mesh-links"] tbody tr').length >= 4`)
}

// graphScript makes a picture of three nodes on a canvas of its own.
const graphScript = `const g = await import('./graph.js');
	const box = document.createElement('div'), canvas = document.createElement('canvas');
	box.className = 'mesh-picture'; box.append(canvas); document.querySelector('main').append(box);
	const topology = (rtt) => ({nodes: [{did: 'a', self: true, organization: 'x', reachable: true}, {did: 'b', organization: 'x', reachable: true}, {did: 'c', reachable: true}],
		links: [{from: 'a', to: 'b', rtt_ms: rtt}, {from: 'b', to: 'c', rtt_ms: rtt}]});
	const settled = async (graph) => { while (!graph.settled) await new Promise((r) => setTimeout(r, 10)); };
	const graph = new g.Graph(canvas);
	const first = g.work.draws;
	graph.update(topology(1));
	await settled(graph);
	const drawn = g.work.draws;`

// TestUnchangedMesh: a topology that says the same, with other round-trip times, is neither laid out nor drawn again, and a new node leaves the others near where they were.
func TestUnchangedMesh(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/node")
	p.loaded()
	got := p.eval(`(async () => { ` + graphScript + `
		const layouts = g.work.layouts, changed = graph.update(topology(2));
		await new Promise((r) => setTimeout(r, 200));
		const before = {...graph.picture.byKey.get('b')}, next = topology(3);
		const draws = g.work.draws - drawn;
		const same = g.work.layouts - layouts;
		next.nodes.push({did: 'd', reachable: true}); next.links.push({from: 'b', to: 'd'});
		graph.update(next);
		const b = graph.picture.byKey.get('b'), d = graph.picture.byKey.get('d');
		const started = Math.hypot(d.x - b.x, d.y - b.y) < 60, kept = b.x === before.x && b.y === before.y;
		graph.destroy();
		return [changed, draws, same, started, kept].join();
	})()`)
	if got != "false,0,0,true,true" {
		t.Errorf("changed, draws, layouts, starts near a neighbor, keeps its place: %v", got)
	}
}

// TestMeshWithoutMotion: with reduced motion, a layout is drawn when it has settled, not while it moves.
func TestMeshWithoutMotion(t *testing.T) {
	t.Parallel()
	p := open(t, mesh.Members[0], wide, "#/node")
	p.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: "reduce"}}))
	p.loaded()
	draws, ok := p.eval(`(async () => { ` + graphScript + ` graph.destroy(); return drawn - first; })()`).(float64)
	if !ok || draws < 1 || draws > 3 {
		t.Errorf("%v draws", draws)
	}
}
