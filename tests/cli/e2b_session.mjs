// A program for E2B: nothing in it knows of forkd. Prints `done` when all of it held.

import assert from 'node:assert/strict'
import { CommandExitError, NotFoundError, Sandbox, TimeoutError } from 'e2b'

const soon = async (claim, what, seconds = 60) => {
  const until = Date.now() + seconds * 1000
  while (!(await claim())) {
    assert.ok(Date.now() < until, what)
    await new Promise((go) => setTimeout(go, 200))
  }
}

async function commands(sandbox) {
  const said = 'echo out; echo err >&2; echo $GREETING $E2B_SANDBOX $EXTRA'
  const result = await sandbox.commands.run(said, { envs: { EXTRA: 'x' } })
  assert.deepEqual([result.stdout, result.stderr], ['out\nhello true x\n', 'err\n'])
  await assert.rejects(sandbox.commands.run('exit 3'), (error) =>
    error instanceof CommandExitError && error.exitCode === 3)
  await assert.rejects(sandbox.commands.run('sleep 60', { timeoutMs: 3000 }), TimeoutError)
}

async function background(sandbox) {
  const cat = await sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
  const listed = await sandbox.commands.list()
  assert.ok(listed.some((process) => process.pid === cat.pid))
  await sandbox.commands.sendStdin(cat.pid, 'typed\n')
  await sandbox.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'typed\n')
  const sleeper = await sandbox.commands.run('sleep 600', { background: true, timeoutMs: 0 })
  assert.ok(await sandbox.commands.kill(sleeper.pid))
  await assert.rejects(sleeper.wait(), CommandExitError)
  assert.equal(await sandbox.commands.kill(999_999), false)
}

async function terminal(sandbox) {
  let seen = ''
  const onData = (data) => { seen += Buffer.from(data).toString() }
  const pty = await sandbox.pty.create({ rows: 24, cols: 80, timeoutMs: 0, onData })
  await sandbox.pty.resize(pty.pid, { rows: 30, cols: 100 })
  await sandbox.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait().catch(() => {})
  assert.match(seen, /30 100/)
}

async function files(sandbox) {
  const fs = sandbox.files
  await fs.write('notes/a b.txt', 'text')
  assert.equal(await fs.read('notes/a b.txt'), 'text')
  const many = new Uint8Array(1 << 20).map((_, at) => at)
  await fs.write('/tmp/bytes', many.buffer)
  assert.deepEqual(await fs.read('/tmp/bytes', { format: 'bytes' }), many)
  await fs.write([{ path: '/tmp/m/1', data: '1' }, { path: '/tmp/m/2', data: '2' }])
  assert.ok(await fs.makeDir('/tmp/m/below'))
  assert.equal(await fs.makeDir('/tmp/m/below'), false)
  const names = (await fs.list('/tmp/m')).map((entry) => entry.name)
  assert.deepEqual(names.sort(), ['1', '2', 'below'])
  const kept = await fs.write('/root/kept', 'x', { metadata: { Author: 'me & you' } })
  assert.deepEqual(kept.metadata, { author: 'me & you' })
  assert.deepEqual((await fs.getInfo('/root/kept')).metadata, { author: 'me & you' })
  await fs.rename('/tmp/m/1', '/tmp/m/one')
  assert.deepEqual([await fs.exists('/tmp/m/one'), await fs.exists('/tmp/m/1')], [true, false])
  await fs.remove('/tmp/m')
  await assert.rejects(fs.read('/tmp/m/one'), NotFoundError)
  const address = await sandbox.downloadUrl('/tmp/bytes')
  assert.equal((await (await fetch(address)).arrayBuffer()).byteLength, 1 << 20)
}

async function watch(sandbox) {
  const names = new Set()
  await sandbox.files.makeDir('/tmp/watched')
  const handle = await sandbox.files.watchDir('/tmp/watched', (event) => names.add(event.name))
  await sandbox.files.write('/tmp/watched/new', 'x')
  await soon(() => names.has('new'), 'a new file is told')
  await handle.stop()
}

async function life(sandbox) {
  await sandbox.setTimeout(900_000)
  const info = await sandbox.getInfo()
  assert.deepEqual(info.metadata, { 'a b': 'c&d' })
  const page = await Sandbox.list({ query: { metadata: { 'a b': 'c&d' } } }).nextItems()
  assert.deepEqual(page.map((one) => one.sandboxId), [sandbox.sandboxId])
  await sandbox.pause()
  const again = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 900_000 })
  assert.equal((await again.commands.run('echo -n same')).stdout, 'same')
}

async function snapshots(sandbox) {
  await sandbox.files.write('/dev/shm/thought', 'half')
  const snapshot = await sandbox.createSnapshot()
  const child = await Sandbox.create(snapshot.snapshotId, { timeoutMs: 600_000 })
  assert.equal(await child.files.read('/dev/shm/thought'), 'half')
  await child.files.write('/dev/shm/thought', 'whole')
  assert.equal(await sandbox.files.read('/dev/shm/thought'), 'half')
  assert.ok(await child.kill())
  assert.ok(await Sandbox.deleteSnapshot(snapshot.snapshotId))
}

const sandbox = await Sandbox.create({
  timeoutMs: 600_000, metadata: { 'a b': 'c&d' }, envs: { GREETING: 'hello' },
})
for (const part of [commands, background, terminal, files, watch, life, snapshots]) {
  const begun = Date.now()
  await part(sandbox)
  console.log(`${part.name}: ${Date.now() - begun} ms`)
}
assert.ok(await sandbox.kill())
assert.equal(await sandbox.isRunning(), false)
console.log('done')
process.exit(0)
