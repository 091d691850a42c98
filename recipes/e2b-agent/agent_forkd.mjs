// The agent loop of `agent_e2b.mjs` with branches: all proposals at once, each in a child.
//
// A child is a copy of the sandbox as it runs, so nothing is run again: the best child goes on.

import { readFileSync } from 'node:fs'
import { Sandbox } from 'forkd-sdk'

const task = JSON.parse(readFileSync(new URL('task.json', import.meta.url), 'utf8'))

/** How many are left; Infinity if that cannot be told. */
async function problems(sandbox) {
  const execution = await sandbox.runCode(task.check)
  return execution.error ? Infinity : Number(execution.text)
}

/** How many problems a proposal leaves; Infinity if it fails. */
async function outcome(child, code) {
  const { error } = await child.runCode(code)
  return error ? Infinity : problems(child)
}

const source = await Sandbox.create('python')
await source.runCode(task.setup)
let sandbox = source
let left = await problems(sandbox)
let kept = 0
const branches = []
const figures = { sandboxes: 1, tried: 0, run_again: 0 }
for (const proposals of task.turns) {
  const branch = await sandbox.branch({ n: proposals.length })
  branches.push(branch)
  const children = branch.unwrap()
  const found = await Promise.all(proposals.map((code, at) => outcome(children[at], code)))
  figures.tried += proposals.length
  figures.sandboxes += children.length
  const best = Math.min(...found)
  if (best < left) {
    sandbox = children[found.indexOf(best)]
    left = best
    kept += 1
  }
}
for (const branch of branches) await branch.remove()
await source.remove()
console.log(JSON.stringify({ left, kept, ...figures }))
