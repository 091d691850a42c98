// A program for E2B that calls what `e2b_session.mjs` leaves out: nothing in it knows of forkd.
//
// Prints `done` when all of it held. What is refused must be refused with a reason.

import assert from 'node:assert/strict'
import { CommandExitError, Sandbox, Secret, Template, Volume } from 'e2b'

const soon = async (claim, what, seconds = 60) => {
  const until = Date.now() + seconds * 1000
  while (!(await claim())) {
    assert.ok(Date.now() < until, what)
    await new Promise((go) => setTimeout(go, 100))
  }
}

const isDead = (handle) => assert.rejects(handle.wait(), CommandExitError)

async function commands({ commands }) {
  const told = await commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
  await told.sendStdin('of the handle\n')
  await told.closeStdin()
  assert.equal((await told.wait()).stdout, 'of the handle\n')
  const sleeper = await commands.run('sleep 600', { background: true, timeoutMs: 0 })
  const watched = await commands.connect(sleeper.pid)
  await watched.disconnect()
  assert.deepEqual((await commands.list()).map((one) => one.pid), [sleeper.pid])
  assert.ok(await sleeper.kill())
  await isDead(sleeper)
  assert.equal(await sleeper.kill(), false)
}

async function terminals({ pty }) {
  let seen = ''
  const onData = (data) => { seen += Buffer.from(data).toString() }
  const made = await pty.create({ rows: 24, cols: 80, timeoutMs: 0, onData: () => {} })
  const again = await pty.connect(made.pid, { onData })
  await pty.sendInput(made.pid, new TextEncoder().encode("stty size; echo th''ere\n"))
  await soon(() => seen.includes('there'), 'what is typed is run')
  assert.match(seen, /24 80/)
  assert.ok(await pty.kill(made.pid))
  await Promise.all([isDead(made), isDead(again)])
  assert.equal(await pty.kill(made.pid), false)
}

async function files(sandbox) {
  await sandbox.files.writeFiles([{ path: '/tmp/m/1', data: '1' }])
  assert.equal((await sandbox.files.getInfo('/tmp/m/1')).size, 1)
  const address = await sandbox.uploadUrl('/tmp/m/2')
  const form = new FormData()
  form.append('file', new Blob(['2']), 'named')
  assert.equal((await fetch(address, { method: 'POST', body: form })).status, 200)
  assert.equal(await sandbox.files.read('/tmp/m/2'), '2')
}

async function packedFilesAndLinks({ commands, files }) {
  const text = 'half a thought\n'.repeat(100_000)
  await files.write('/tmp/packed', text, { gzip: true })
  assert.equal((await commands.run('wc -c < /tmp/packed')).stdout, `${text.length}\n`)
  assert.equal(await files.read('/tmp/packed', { gzip: true }), text)
  await commands.run('ln -s packed /tmp/link')
  const { type, symlinkTarget } = await files.getInfo('/tmp/link')
  assert.deepEqual([type, symlinkTarget], ['file', '/tmp/packed'])
}

/** The package starts the gateway of the template, with a token and with what it is told. */
async function serversOfTools(sandbox) {
  const gateway = '#!/bin/sh\nmkdir -p /etc/mcp-gateway\nprintf %s "$2" > /etc/mcp-gateway/config\n'
  const mcp = { time: { zone: "it's UTC" } }
  await assert.rejects(Sandbox.create('base', { mcp, timeoutMs: 300_000 }), /MCP gateway/)
  await sandbox.files.write('/usr/local/bin/mcp-gateway', gateway)
  await sandbox.commands.run('chmod 755 /usr/local/bin/mcp-gateway')
  const { snapshotId } = await sandbox.createSnapshot()
  const tools = await Sandbox.create(snapshotId, { mcp, timeoutMs: 300_000 })
  assert.equal((await tools.getMcpToken()).length, 36)
  assert.equal(tools.getMcpUrl(), `https://${tools.getHost(50005)}/mcp`)
  assert.deepEqual(JSON.parse(await tools.files.read('/etc/mcp-gateway/config')), mcp)
  assert.ok((await tools.kill()) && (await Sandbox.deleteSnapshot(snapshotId)))
}

async function repository({ files, git }) {
  const [path, origin, other] = ['/tmp/git/one', '/tmp/git/origin', '/tmp/git/two']
  await git.init(origin, { bare: true, initialBranch: 'main' })
  await git.init(path, { initialBranch: 'main' })
  await git.configureUser('A', 'a@b.test')
  await git.setConfig('core.abbrev', '12', { scope: 'local', path })
  assert.equal(await git.getConfig('core.abbrev', { scope: 'local', path }), '12')
  await git.dangerouslyAuthenticate({ username: 'u', password: 'p', host: 'git.test' })
  await files.write(`${path}/file`, 'one')
  await git.add(path)
  await git.commit(path, 'first')
  await git.remoteAdd(path, 'origin', origin)
  assert.equal(await git.remoteGet(path, 'origin'), origin)
  await git.push(path, { remote: 'origin', branch: 'main' })
  await git.createBranch(path, 'side')
  await git.checkoutBranch(path, 'main')
  await git.deleteBranch(path, 'side')
  assert.deepEqual((await git.branches(path)).branches, ['main'])
  await git.clone(origin, { path: other })
  await files.write(`${other}/file`, 'two')
  await git.add(other)
  await git.reset(other)
  assert.equal((await git.status(other)).stagedCount, 0)
  await git.restore(other, { paths: ['file'] })
  assert.ok((await git.status(other)).isClean)
  await git.pull(path)
}

async function life(sandbox) {
  const denied = { denyOut: ['0.0.0.0/0'] }
  await sandbox.updateNetwork(denied)
  assert.deepEqual((await sandbox.getInfo()).network.denyOut, denied.denyOut)
  const [used] = await sandbox.getMetrics()
  assert.ok(used.cpuCount > 0 && used.memUsed < used.memTotal && used.diskUsed > 0, used)
  assert.ok(await sandbox.isRunning())
  assert.ok(await sandbox.betaPause())
  assert.equal(await sandbox.pause(), false)
  await sandbox.connect({ timeoutMs: 900_000 })
}

/** What is asked of the class with an id instead of an object. */
async function byId({ sandboxId: id }) {
  await Sandbox.setTimeout(id, 900_000)
  assert.equal((await Sandbox.getInfo(id)).sandboxId, id)
  assert.equal((await Sandbox.getFullInfo(id)).sandboxId, id)
  assert.equal((await Sandbox.getMetrics(id)).length, 1)
  await Sandbox.updateNetwork(id, { denyOut: ['0.0.0.0/0'] })
  assert.ok(await Sandbox.pause(id))
  assert.equal(await Sandbox.betaPause(id), false)
  await Sandbox.connect(id, { timeoutMs: 900_000 })
  const snapshot = await Sandbox.createSnapshot(id)
  const listed = await Sandbox.listSnapshots({ sandboxId: id }).nextItems()
  assert.deepEqual(listed.map((one) => one.snapshotId), [snapshot.snapshotId])
  assert.ok(await Sandbox.deleteSnapshot(snapshot.snapshotId))
  const [fork] = await Sandbox.fork(id, { timeoutMs: 300_000 })
  assert.ok(await Sandbox.kill(fork.sandboxId))
}

async function forks(sandbox) {
  const told = await sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 0 })
  await sandbox.files.write('/dev/shm/thought', 'half')
  const children = await sandbox.fork({ count: 2, timeoutMs: 300_000 })
  assert.deepEqual(await sandbox.listSnapshots().nextItems(), [])
  for (const [index, one] of [...children, sandbox].entries()) {
    assert.equal(await one.files.read('/dev/shm/thought'), 'half')
    await one.files.write('/dev/shm/thought', 'whole')
    // A fork has the programs of its source, and they answer.
    const [{ pid }] = await one.commands.list()
    assert.equal(pid, told.pid)
    const cat = one === sandbox ? told : await one.commands.connect(pid)
    await one.commands.sendStdin(pid, `of ${index}\n`)
    await one.commands.closeStdin(pid)
    assert.equal((await cat.wait()).stdout, `of ${index}\n`)
  }
  assert.ok((await Promise.all(children.map((child) => child.kill()))).every(Boolean))
}

async function templates() {
  assert.ok((await Template.exists('base')) && (await Template.aliasExists('base')))
  assert.equal(await Template.exists('none'), false)
}

async function refusals() {
  const recipe = Template().fromPythonImage().runCmd('true')
  const refused = async (why, calls) => {
    for (const call of calls) await assert.rejects(call, (error) => error.message.includes(why))
  }
  await refused('build templates with `forkd template build`', [
    () => Template.build(recipe, 't'),
    () => Template.buildInBackground(recipe, 't'),
    () => Template.getBuildStatus({ templateId: 't', buildId: 'b' }),
    () => Template.assignTags('base:default', 't'),
    () => Template.removeTags('base', 't'),
    () => Template.getTags('base'),
  ])
  await refused('keep keys with `forkd secret`', [
    () => Secret.create('key', 'value'),
    () => Secret.update('key', 'value'),
    () => Secret.getInfo('key'),
    () => Secret.exists('key'),
    () => Secret.destroy('key'),
    () => Secret.list().nextItems(),
  ])
  await refused('it has no volumes', [
    () => Volume.create('v'),
    () => Volume.connect('v'),
    () => Volume.getInfo('v'),
    () => Volume.list(),
    () => Volume.destroy('v'),
  ])
}

const sandbox = await Sandbox.create('base', { timeoutMs: 900_000 })
const parts = [templates, refusals, commands, terminals, files, packedFilesAndLinks, repository]
for (const part of [...parts, serversOfTools, life, byId, forks]) {
  const begun = Date.now()
  await part(sandbox)
  console.log(`${part.name}: ${Date.now() - begun} ms`)
}
assert.ok(await sandbox.kill())
console.log('done')
process.exit(0)
