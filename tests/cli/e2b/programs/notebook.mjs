// A code interpreter in Node: cells share their variables, and tell what they print, show and raise.

import { Sandbox } from '@e2b/code-interpreter'

const sandbox = await Sandbox.create()
await sandbox.runCode('words = "a notebook for a program".split()')
const longest = await sandbox.runCode('max(words, key=len)')
console.log('value:', longest.text)

const printed = []
await sandbox.runCode('for word in words[:2]: print(word)', {
  onStdout: (message) => printed.push(message.line),
})
console.log('printed:', printed.join('').split('\n').filter(Boolean).join(' '))

const shown = await sandbox.runCode(`
class Heading:
    def _repr_html_(self): return "<h1>" + " ".join(words) + "</h1>"
Heading()
`)
console.log('shown:', shown.results[0].html)

const failed = await sandbox.runCode('words[99]')
console.log('raised:', failed.error.name)

const context = await sandbox.createCodeContext({ cwd: '/tmp' })
const elsewhere = await sandbox.runCode('import os\nos.getcwd(), "words" in globals()', { context })
console.log('elsewhere:', elsewhere.text)
await sandbox.kill()
process.exit(0)
