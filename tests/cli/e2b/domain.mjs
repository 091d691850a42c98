// A program for E2B under a domain, over TLS: previews, a WebSocket, tokens of traffic, waking by a
// visitor, and what a sandbox may reach. Prints `done` when all of it held.

import assert from 'node:assert/strict'
import https from 'node:https'
import { Sandbox } from '@e2b/code-interpreter'

const LIFE = { timeoutMs: 600_000 }
const [address, allowed, forbidden] = process.argv.slice(2)

// Serves the path that is asked for, and gives back what comes over a WebSocket's connection.
const SERVER = `
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        if self.headers.get('Upgrade') == 'websocket':
            self.send_response(101)
            self.send_header('Connection', 'Upgrade')
            self.send_header('Upgrade', 'websocket')
            self.end_headers()
            while piece := self.connection.recv(4096):
                self.connection.sendall(piece)
            return
        said = self.path.encode()
        self.send_response(200)
        self.send_header('Content-Length', str(len(said)))
        self.end_headers()
        self.wfile.write(said)
    def log_message(self, *said): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 3000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
`

const REACH = `
import socket
def reach(port):
    try:
        connection = socket.create_connection(('${address}', port), timeout=60)
        connection.sendall(b'yes')
        return connection.recv(10).decode()
    except OSError as error:
        return type(error).__name__
[reach(port) for port in (${allowed}, ${forbidden})]
`

const visit = (sandbox, headers = {}) =>
  fetch(`https://${sandbox.getHost(3000)}/page?a=b`, { headers })

function echoed(sandbox, word) {
  const key = Buffer.alloc(16).toString('base64')
  const headers = { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Key': key }
  return new Promise((found, failed) => {
    const [host, port] = sandbox.getHost(3000).split(':')
    const asked = https.request({ host, port, headers: { ...headers, 'Sec-WebSocket-Version': 13 } })
    asked.on('error', failed)
    asked.on('response', (answer) => failed(new Error(`no upgrade: ${answer.statusCode}`)))
    asked.on('upgrade', (_, socket) => {
      socket.once('data', (piece) => { found(String(piece)); socket.destroy() })
      socket.write(word)
    })
    asked.end()
  })
}

async function serving(options) {
  const sandbox = await Sandbox.create({ ...LIFE, ...options })
  const { error } = await sandbox.runCode(SERVER)
  assert.equal(error, undefined)
  return sandbox
}

async function previews() {
  const sandbox = await serving({})
  assert.equal((await sandbox.commands.run('echo hello')).stdout, 'hello\n')
  await sandbox.files.write('/tmp/note', 'text')
  assert.equal(await (await fetch(await sandbox.downloadUrl('/tmp/note'))).text(), 'text')
  const page = await visit(sandbox)
  assert.deepEqual([page.status, await page.text()], [200, '/page?a=b'])
  assert.equal(await echoed(sandbox, 'over TLS'), 'over TLS')
  await sandbox.kill()
}

async function tokens() {
  const sandbox = await serving({ network: { allowPublicTraffic: false } })
  assert.equal((await visit(sandbox)).status, 403)
  const wrong = { 'e2b-traffic-access-token': 'x' }
  assert.equal((await visit(sandbox, wrong)).status, 403)
  const token = { 'e2b-traffic-access-token': sandbox.trafficAccessToken }
  assert.equal((await visit(sandbox, token)).status, 200)
  assert.equal((await sandbox.runCode('1 + 1')).text, '2', 'the package gives the token itself')
  await sandbox.kill()
}

async function waking() {
  const lifecycle = { onTimeout: 'pause', autoResume: true }
  const sandbox = await serving({ lifecycle })
  await sandbox.pause()
  assert.equal((await sandbox.getInfo()).state, 'paused')
  assert.equal((await visit(sandbox)).status, 200, 'a visitor wakes it')
  assert.equal((await sandbox.getInfo()).state, 'running')
  await sandbox.kill()
}

async function reach(options, expected) {
  const sandbox = await Sandbox.create({ ...LIFE, ...options })
  assert.equal((await sandbox.runCode(REACH)).text, expected, JSON.stringify(options))
  await sandbox.kill()
}

async function policies() {
  const refused = 'ConnectionRefusedError'
  await reach({}, "['yes', 'yes']")
  await reach({ allowInternetAccess: false }, `['${refused}', '${refused}']`)
  const allowOut = [`${address}:${allowed}`]
  await reach({ network: { allowOut, denyOut: ['0.0.0.0/0'] } }, `['yes', '${refused}']`)
  await reach({ network: { denyOut: [`${address}/32`] } }, `['${refused}', '${refused}']`)
}

for (const part of [previews, tokens, waking, policies]) {
  const begun = Date.now()
  await part()
  console.log(`${part.name}: ${((Date.now() - begun) / 1000).toFixed(1)} s`)
}
console.log('done')
process.exit(0)
