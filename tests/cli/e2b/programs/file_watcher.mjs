// A file watcher: whatever a program does below a folder of the sandbox is told as it happens.

import { Sandbox } from 'e2b'

const sandbox = await Sandbox.create()
await sandbox.files.makeDir('/srv/site/pages')
const told = []
let enough
const allCame = new Promise((resolve) => (enough = resolve))
const handle = await sandbox.files.watchDir('/srv/site', (event) => {
  const line = `${event.type} ${event.name}`
  if (!told.includes(line)) told.push(line)
  if (event.name === 'last') enough()
}, { recursive: true })
await sandbox.files.write('/srv/site/index.html', '<h1>Home</h1>')
await sandbox.commands.run('echo text > pages/one && rm pages/one && touch last', {
  cwd: '/srv/site',
})
await allCame
await handle.stop()
for (const line of ['write index.html', 'create pages/one', 'remove pages/one', 'create last']) {
  console.log(`${line}: ${told.includes(line) ? 'told' : 'not told'}`)
}
await sandbox.kill()
process.exit(0)
