// A program for E2B's code interpreter: nothing in it knows of forkd. Prints `done` when all held.

import assert from 'node:assert/strict'
import http from 'node:http'
import { Sandbox } from '@e2b/code-interpreter'

const PICTURE = `
class Picture:
    def __repr__(self): return "a picture"
    def _repr_png_(self): return b"\\x89PNG" + bytes(100_000)
    def _repr_html_(self): return "<b>\\u2028\\u00e9</b>"
`

/** Asks a server in a sandbox by its own name, which only browsers know to be on this machine. */
function get(host, path) {
  const { hostname, port } = new URL(process.env.E2B_API_URL)
  return new Promise((resolve, reject) => {
    const request = http.get({ hostname, port, path, headers: { host } }, (answer) => {
      let body = ''
      answer.on('data', (piece) => (body += piece))
      answer.on('end', () => resolve({ status: answer.statusCode, body }))
    })
    request.on('error', reject)
  })
}

const sandbox = await Sandbox.create('base', { timeoutMs: 900_000 })
await sandbox.runCode('x = 41')
const counted = await sandbox.runCode('x += 1\nx')
assert.deepEqual([counted.text, counted.executionCount], ['42', 2])

await sandbox.runCode(PICTURE)
const printed = []
const shown = await sandbox.runCode("print('é')\ndisplay(Picture())\nPicture()", {
  onStdout: (message) => printed.push(message.line),
})
assert.equal(printed.join(''), 'é\n')
assert.deepEqual(shown.results.map((result) => result.isMainResult), [false, true])
for (const result of shown.results) {
  assert.equal(result.html, '<b>\u2028é</b>')
  assert.ok(result.png.startsWith('iVBO'))
}

const failed = await sandbox.runCode("raise ValueError('no')")
assert.deepEqual([failed.error.name, failed.error.value], ['ValueError', 'no'])

await assert.rejects(sandbox.runCode('import time\ntime.sleep(300)', { timeoutMs: 3000 }))
assert.equal((await sandbox.runCode('1 + 1')).text, '2')

const context = await sandbox.createCodeContext({ cwd: '/tmp' })
assert.equal((await sandbox.runCode('import os\nos.getcwd()', { context })).text, '/tmp')
const ids = (await sandbox.listCodeContexts()).map((listed) => listed.id)
assert.ok(ids.includes(context.id))
await sandbox.restartCodeContext(context)
assert.equal((await sandbox.runCode('os', { context })).error.name, 'NameError')
await sandbox.removeCodeContext(context)

await sandbox.files.write('/tmp/site/page', 'content')
const serve = 'cd /tmp/site && exec python3 -m http.server 3000 --bind 127.0.0.1'
await sandbox.commands.run(serve, { background: true, timeoutMs: 0 })
const host = sandbox.getHost(3000)
let answer = await get(host, '/page')
for (let tries = 0; answer.status === 502 && tries < 600; tries++) {
  await new Promise((resolve) => setTimeout(resolve, 100))
  answer = await get(host, '/page')
}
assert.deepEqual(answer, { status: 200, body: 'content' })

await sandbox.kill()
console.log('done')
