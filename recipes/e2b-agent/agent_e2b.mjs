// An agent loop for E2B: it tries what a model proposes, and keeps what leaves fewer problems.
//
// A proposal that does not help has changed the sandbox all the same. So the loop begins with a
// new one, and runs again all that it had kept.

import { readFileSync } from 'node:fs'
import { Sandbox } from '@e2b/code-interpreter'

const task = JSON.parse(readFileSync(new URL('task.json', import.meta.url), 'utf8'))

/** A new sandbox in which all that was kept has run. */
async function fresh(kept) {
  const sandbox = await Sandbox.create({ timeoutMs: 600_000 })
  for (const code of kept) await sandbox.runCode(code)
  return sandbox
}

/** How many are left; NaN if that cannot be told. */
async function problems(sandbox) {
  const execution = await sandbox.runCode(task.check)
  return execution.error ? NaN : Number(execution.text)
}

const kept = [task.setup]
let sandbox = await fresh(kept)
let left = await problems(sandbox)
const figures = { sandboxes: 1, tried: 0, run_again: 0 }
for (const proposals of task.turns) {
  for (const code of proposals) {
    figures.tried += 1
    const { error } = await sandbox.runCode(code)
    const now = await problems(sandbox)
    if (!error && now < left) {
      kept.push(code)
      left = now
      break
    }
    await sandbox.kill()
    sandbox = await fresh(kept)
    figures.sandboxes += 1
    figures.run_again += kept.length
  }
}
await sandbox.kill()
console.log(JSON.stringify({ left, kept: kept.length - 1, ...figures }))
process.exit(0)
