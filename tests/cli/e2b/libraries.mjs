// Real libraries of data analysis through E2B's code interpreter. Prints `done` when all held.

import assert from 'node:assert/strict'
import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create({ timeoutMs: 900_000 })
const plot = 'import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label="up")\nplt.show()'
const [figure] = (await sandbox.runCode(plot)).results
assert.equal(Buffer.from(figure.png, 'base64').toString('latin1', 1, 4), 'PNG')
assert.equal(figure.chart.type, 'line')
assert.deepEqual(figure.chart.elements[0].points, [[1, 3], [2, 4]])
const [table] = (await sandbox.runCode('import pandas\npandas.DataFrame({"n": [1, 2]})')).results
assert.deepEqual(table.data, { n: [1, 2] })
assert.equal((await sandbox.commands.run('id -un')).stdout, 'user\n')
await sandbox.kill()
console.log('done')
process.exit(0)
