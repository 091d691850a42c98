// The public methods of E2B's packages for JavaScript, as they are installed.
//
//     node methods.mjs                        prints each: client, package, method
//     node --import ./methods.mjs SESSION     appends what a session calls to $E2B_METHODS_RECORD
//
// Public is what the classes have that the declarations export. `Sandbox.kill` belongs to the
// class, `Sandbox#kill` to its objects; a method of a class that is not exported is named after
// the one that is. A line of the record is client, method and outcome: nothing if it has
// returned, else what it threw. What a method calls itself is not a call of the session.

import { AsyncLocalStorage } from 'node:async_hooks'
import { appendFileSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const CLIENT = 'javascript'
const PACKAGES = ['e2b', '@e2b/code-interpreter']
const CLASS = /^declare (?:abstract )?class (\w+)(?:<.*?>+)?(?: extends ([\w$]+))?.*\{$/
const METHOD = /^ {2}(static )?(\w+)[<(]/
const require = createRequire(import.meta.url)

const declarations = (name) =>
  readFileSync(require.resolve(name).replace(/\.js$/, '.d.ts'), 'utf8').split('\n')

/** What a package declares: its classes, their methods, and the names that it exports. */
function declared(lines) {
  const classes = new Map()
  const functions = []
  let current
  for (const line of lines) {
    const head = CLASS.exec(line)
    const method = METHOD.exec(line)
    if (head) {
      current = { base: head[2], methods: new Set() }
      classes.set(head[1], current)
    } else if (line.startsWith('}')) {
      current = undefined
    } else if (current && method && method[2] !== 'constructor') {
      current.methods.add(`${method[1] ? '.' : '#'}${method[2]}`)
    }
    functions.push(...(/^declare function (\w+)/.exec(line)?.slice(1) ?? []))
  }
  const list = lines.find((line) => line.startsWith('export {'))
  const exported = [...list.matchAll(/(?:type )?(\w+)(?: as \w+)?[,\s]/g)].map((match) => match[1])
  return { classes, exported, functions: functions.filter((name) => exported.includes(name)) }
}

/** Every public method: its package, and its name. */
function* methods() {
  for (const name of PACKAGES) {
    const { classes, exported, functions } = declared(declarations(name))
    for (const own of exported.filter((one) => classes.has(one))) {
      for (let at = own; classes.has(at); at = classes.get(at).base) {
        if (at !== own && exported.includes(at)) break
        for (const method of classes.get(at).methods) yield [name, own + method]
      }
    }
    for (const one of functions) yield [name, one]
  }
}

const inside = new AsyncLocalStorage()

const observers = new WeakSet()

/** Puts in the place of a function one that does the same and writes down how it went. */
function observe(place, name, method) {
  const original = place[name]
  // The class of one package extends that of the other, which is watched itself.
  if (typeof original !== 'function' || observers.has(original)) return
  const write = (outcome) => {
    const line = [CLIENT, method, outcome.replace(/\s+/g, ' ')].join('\t')
    appendFileSync(process.env.E2B_METHODS_RECORD, `${line}\n`)
  }
  const failed = (error) => {
    write(`${error?.constructor?.name}: ${error?.message}`)
    throw error
  }
  const returned = (value) => {
    write('')
    follow(value)
    return value
  }
  function call(...given) {
    const act = () => original.apply(this, given)
    if (inside.getStore()) return act()
    let value
    try {
      value = inside.run(true, act)
    } catch (error) {
      failed(error)
    }
    return value instanceof Promise ? value.then(returned, failed) : returned(value)
  }
  observers.add(call)
  const how = { configurable: true, enumerable: false, writable: true }
  Object.defineProperty(place, name, { ...how, value: call })
}

const wanted = new Map()
const watched = new Set()

/** Watches the methods of a class, and those of a base that is not exported. */
function watch(constructor, name) {
  if (watched.has(constructor)) return
  watched.add(constructor)
  for (const method of wanted.get(name)) {
    const isStatic = method[name.length] === '.'
    const own = method.slice(name.length + 1)
    observe(isStatic ? constructor : constructor.prototype, own, method)
  }
}

/** Watches the classes of what a session got: not all of them are exported as values. */
function follow(value) {
  for (const one of Array.isArray(value) ? value : [value]) {
    if (one === null || typeof one !== 'object') continue
    watchClassOf(one)
    for (const part of ['files', 'commands', 'pty', 'git']) if (one[part]) watchClassOf(one[part])
  }
}

function watchClassOf(value) {
  const { constructor } = value
  if (wanted.has(constructor?.name)) watch(constructor, constructor.name)
}

async function watchAll() {
  for (const [, method] of methods()) {
    const [name] = method.split(/[.#]/)
    if (name !== method) wanted.set(name, [...(wanted.get(name) ?? []), method])
  }
  for (const name of PACKAGES) {
    for (const [exported, value] of Object.entries(await import(name))) {
      if (wanted.has(exported) && typeof value === 'function') watch(value, exported)
    }
  }
}

if (process.env.E2B_METHODS_RECORD) {
  await watchAll()
} else if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const lines = [...methods()].map(([name, method]) => [CLIENT, name, method].join('\t'))
  console.log([...new Set(lines)].sort().join('\n'))
}
