// Forks as E2B's published package makes them: as many as are said in one call. They have the
// programs and the interpreter of their source, while it drops no stream and no connection. A fork
// answers sooner than a new sandbox that is brought as far. Prints `done` when all of it held.

import assert from 'node:assert/strict'
import http from 'node:http'
import { Sandbox } from '@e2b/code-interpreter'

const FORKS = Number(process.argv[2])
const ASKED_AT_ONCE = 10
// Code is run in each of so many: the first of a fork takes a processor for a while.
const RUN_IN = 5
const ROUNDS = 3
const LIFE = { timeoutMs: 900_000 }
const SERVED = 8000

// Counts in chunks for whoever asks, and gives back what comes over a WebSocket's connection.
const SERVER = `
import socket, threading, time
def serve(connection):
    head = b''
    while b'\\r\\n\\r\\n' not in head:
        head += connection.recv(4096)
    if b'upgrade: websocket' in head.lower():
        connection.sendall(b'HTTP/1.1 101 Switching Protocols\\r\\n'
                           b'Connection: Upgrade\\r\\nUpgrade: websocket\\r\\n\\r\\n')
        while piece := connection.recv(4096):
            connection.sendall(piece)
        return
    connection.sendall(b'HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n')
    count = 0
    while True:
        line = b'%d\\n' % count
        connection.sendall(b'%x\\r\\n%s\\r\\n' % (len(line), line))
        count += 1
        time.sleep(0.2)
listener = socket.create_server(('', ${SERVED}))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
`
const COUNTER = 'n=0; while true; do echo $n; n=$((n+1)); read -t 0.2; done'

const soon = async (claim, what, seconds = 60) => {
  const until = Date.now() + seconds * 1000
  while (!(await claim())) {
    assert.ok(Date.now() < until, what)
    await new Promise((go) => setTimeout(go, 50))
  }
}

// What counts up without a gap, from 0, however it is cut into pieces.
class Counted {
  text = ''
  ended = false
  take = (piece) => { this.text += piece }
  check() {
    assert.ok(!this.ended, 'it has ended')
    const numbers = this.text.split('\n').slice(0, -1)
    numbers.forEach((number, at) => assert.equal(number, String(at)))
    return numbers.length
  }
  async goesOn(what) {
    const now = this.check()
    await soon(() => this.check() > now + 2, `${what} does not go on`)
  }
}

function request(sandbox, headers = {}) {
  const [host, port] = sandbox.getHost(SERVED).split(':')
  return http.request({ host: '127.0.0.1', port, headers: { Host: `${host}:${port}`, ...headers } })
}

function streamOf(sandbox) {
  const counted = new Counted()
  return new Promise((found, failed) => {
    const asked = request(sandbox)
    asked.on('error', failed)
    asked.on('response', (answer) => {
      assert.equal(answer.statusCode, 200)
      answer.setEncoding('utf8').on('data', counted.take)
      answer.on('close', () => { counted.ended = true })
      found([counted, () => answer.destroy()])
    })
    asked.end()
  })
}

function socketOf(sandbox) {
  return new Promise((found, failed) => {
    const key = Buffer.alloc(16).toString('base64')
    const headers = { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Key': key }
    const asked = request(sandbox, { ...headers, 'Sec-WebSocket-Version': '13' })
    asked.on('error', failed)
    asked.on('upgrade', (_, socket) => found(socket))
    asked.on('response', (answer) => failed(new Error(`no upgrade: ${answer.statusCode}`)))
    asked.end()
  })
}

async function echoes(socket, word) {
  let heard = ''
  const hear = (piece) => { heard += piece }
  socket.on('data', hear)
  socket.write(word)
  await soon(() => heard === word, `the WebSocket's connection says ${heard}, not ${word}`)
  socket.off('data', hear)
}

// As many at a time as the processors can serve: each of a hundred waits for its turn otherwise.
async function ofEach(things, act) {
  const left = [...things]
  const worker = async () => {
    for (let one = left.shift(); one !== undefined; one = left.shift()) await act(one)
  }
  await Promise.all(Array.from({ length: ASKED_AT_ONCE }, worker))
}

async function many(sandbox) {
  const options = { background: true, stdin: true, timeoutMs: 0 }
  const server = await sandbox.commands.run('python3 -u /tmp/server.py', options)
  const counter = new Counted()
  const ticks = await sandbox.commands.run(COUNTER, { ...options, onStdout: counter.take })
  await sandbox.runCode('thought = 6 * 7')
  let served
  await soon(async () => (served = await streamOf(sandbox).catch(() => null)), 'nothing is served')
  const [stream, leave] = served
  const socket = await socketOf(sandbox)
  await echoes(socket, 'before')
  await stream.goesOn('the HTTP answer')
  const forks = await sandbox.fork({ ...LIFE, count: FORKS })
  assert.equal(new Set(forks.map((fork) => fork.sandboxId)).size, FORKS)
  await stream.goesOn('the HTTP answer after the forks')
  await counter.goesOn('the command after the forks')
  await echoes(socket, 'after')
  await ofEach(forks, async (fork) => {
    const pids = (await fork.commands.list()).map((process) => process.pid)
    assert.ok(pids.includes(server.pid) && pids.includes(ticks.pid), `${pids}`)
  })
  await ofEach(forks.slice(0, RUN_IN), async (fork) => {
    assert.equal((await fork.runCode('thought')).text, '42')
  })
  const one = await forks[FORKS - 1].commands.connect(ticks.pid, { timeoutMs: 0 })
  await soon(() => one.stdout.split('\n').length > 2, 'a command does not go on in a fork')
  await stream.goesOn('the HTTP answer at the end')
  await counter.goesOn('the command at the end')
  await ofEach(forks, (fork) => fork.kill())
  leave()
  socket.destroy()
}

async function took(act) {
  const begun = performance.now()
  const made = await act()
  return [performance.now() - begun, made]
}

// The shortest of a few: what the machine does besides must not decide.
async function first_answers(sandbox) {
  const answered = { fork: [], fresh: [] }
  for (let round = 0; round < ROUNDS; round++) {
    const [forked, fork] = await took(async () => {
      const [fork] = await sandbox.fork(LIFE)
      assert.equal((await fork.runCode('thought')).text, '42')
      return fork
    })
    const [made, fresh] = await took(async () => {
      const fresh = await Sandbox.create(LIFE)
      await fresh.runCode('thought = 6 * 7')
      return fresh
    })
    answered.fork.push(forked)
    answered.fresh.push(made)
    await Promise.all([fork.kill(), fresh.kill()])
  }
  const [fork, fresh] = [Math.min(...answered.fork), Math.min(...answered.fresh)]
  assert.ok(fork < fresh, `a fork answers after ${fork} ms, a new sandbox after ${fresh} ms`)
}

const sandbox = await Sandbox.create(LIFE)
await sandbox.files.write('/tmp/server.py', SERVER)
for (const part of [many, first_answers]) {
  const [time] = await took(() => part(sandbox))
  console.log(`${part.name}: ${(time / 1000).toFixed(1)} s`)
}
await sandbox.kill()
console.log('done')
process.exit(0)
