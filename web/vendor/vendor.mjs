// Bundles each library of the console into one file of web/ui/vendor, with its license beside it.
// The same lockfile gives the same bytes: run "npm ci && node vendor.mjs" after a change of package.json.
import { build } from 'esbuild';
import { mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = dirname(fileURLToPath(import.meta.url));
const out = join(here, '..', 'ui', 'vendor');

// One copy of preact: signals hook into its rendering.
const bundles = {
  'preact.js': `
    import { h } from 'preact';
    import htm from 'htm';
    export { h, render, Fragment } from 'preact';
    export { useState, useEffect, useRef, useMemo, useCallback, useLayoutEffect, useId } from 'preact/hooks';
    export { signal, batch, useSignal } from '@preact/signals';
    export const html = htm.bind(h);`,
  'd3-force.js': `
    export { forceSimulation, forceLink, forceManyBody, forceX, forceY, forceCollide } from 'd3-force';`,
};

// packages returns the name, version and license text of each package that has a file in the bundle.
async function packages(inputs) {
  const found = new Map();
  for (const input of Object.keys(inputs)) {
    const match = /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (!match || found.has(match[1])) continue;
    const dir = join(here, 'node_modules', match[1]);
    const { version } = JSON.parse(await readFile(join(dir, 'package.json'), 'utf8'));
    const file = (await readdir(dir)).find((name) => /^licen[cs]e/i.test(name));
    if (!file) throw new Error(`${match[1]} has no license file`);
    found.set(match[1], `${match[1]} ${version}\n\n${(await readFile(join(dir, file), 'utf8')).trim()}\n`);
  }
  return [...found.keys()].sort().map((name) => found.get(name));
}

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
for (const [name, contents] of Object.entries(bundles)) {
  const result = await build({
    stdin: { contents, resolveDir: here, sourcefile: name },
    absWorkingDir: here,
    bundle: true,
    minify: true,
    format: 'esm',
    target: 'es2022',
    charset: 'utf8',
    legalComments: 'none', // the license file beside the bundle has them
    define: { 'process.env.NODE_ENV': '"production"' },
    write: false,
    metafile: true,
    outfile: join(out, name),
  });
  await writeFile(join(out, name), result.outputFiles[0].contents);
  const licenses = await packages(result.metafile.inputs);
  await writeFile(join(out, name.replace(/\.js$/, '.LICENSE.txt')), licenses.join('\n' + '-'.repeat(72) + '\n\n'));
}
