/** A template is the text of a recipe, and its build is a run of the program `forkd`. */

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";

import { Client, command, port, Template, type BuildStep } from "forkd-sdk";
import * as errors from "forkd-sdk/errors";

import * as fake from "../fake.js";
import { FakeDaemon } from "../fake.js";

const TINY = Template.fromSnapshot("tiny");

/** Notes how it was called, and then does what the test says. */
const PROGRAM = `
const fs = require("node:fs");
const names = ["FORKD_URL", "FORKD_SOCKET", "FORKD_TOKEN", "FORKD_CA_CERT"];
const environment = {};
for (const name of names) if (name in process.env) environment[name] = process.env[name];
const recipe = fs.readFileSync(0, "utf8");
const called = { arguments: process.argv.slice(2), recipe, environment };
fs.writeFileSync(__dirname + "/called", JSON.stringify(called));
const tell = (event, more) => console.log(JSON.stringify({ event, ...more }));
const step = (status, more) =>
  tell("step", { number: 1, of: 1, status, line: 3, step: "run true", ms: 1.5, ...more });
`;

const BUILT =
  'step("running"); step("done", { snapshot_tag: "step-1" }); tell("built", { tag: "app", ms: 2.5 });';

/** Tells that it runs, and at an interrupt that it ends in order. */
const PATIENT = `
process.on("SIGTERM", () => {
  fs.writeFileSync(__dirname + "/stopped", "");
  process.exit(130);
});
setTimeout(() => {}, 60000);
step("running");
`;

interface Called {
  arguments: string[];
  recipe: string;
  environment: Record<string, string>;
}

/** The program of a test; it goes with the test. */
class Program implements Disposable {
  readonly place = mkdtempSync(`${tmpdir()}/forkd-`);
  readonly path = `${this.place}/fake-forkd`;

  constructor(acts: string) {
    writeFileSync(this.path, `#!${process.execPath}\n${PROGRAM}${acts}\n`, { mode: 0o755 });
  }

  /** How it was called. */
  get called(): Called {
    return JSON.parse(readFileSync(`${this.place}/called`, "utf8"));
  }

  get wasInterrupted(): boolean {
    return existsSync(`${this.place}/stopped`);
  }

  [Symbol.dispose](): void {
    rmSync(this.place, { recursive: true });
  }
}

function daemonWithApp(): FakeDaemon {
  const daemon = new FakeDaemon();
  daemon.routes = { "GET /v1/snapshots/app/info": () => fake.ok(fake.snapshot("app")) };
  return daemon;
}

/** Runs `act` with these variables in the environment. */
async function within(
  variables: Record<string, string | undefined>,
  act: () => Promise<void>,
): Promise<void> {
  const before = { ...process.env };
  for (const [name, value] of Object.entries(variables)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  try {
    await act();
  } finally {
    process.env = before;
  }
}

test("each step is written as forkd.toml has it", () => {
  const image = Template.fromImage("python:3.12", { memSizeMib: 1024, vcpus: 2 });
  assert.equal(image.recipe, 'from_image = "python:3.12"\nmem_size_mib = 1024\nvcpus = 2\n');
  assert.equal(TINY.recipe, 'from = "tiny"\n');
  const ready = command("curl -f x", { timeoutSecs: 4.5 });
  for (const [template, ...lines] of [
    [TINY.run("a b"), 'run = "a b"'],
    [TINY.run(["a", "b c"]), 'run = ["a", "b c"]'],
    [TINY.copy("a", "./"), 'copy = "a"', 'to = "./"'],
    [
      TINY.copy(["a", "b"], "/c/", { owner: "me:us", mode: 0o64 }),
      'copy = ["a", "b"]',
      'to = "/c/"',
      'owner = "me:us"',
      'mode = "0064"',
    ],
    [TINY.env({ A: "1", "b.c": "=" }), 'env = { "A" = "1", "b.c" = "=" }'],
    [TINY.workdir("/srv"), 'workdir = "/srv"'],
    [TINY.user("app"), 'user = "app"'],
    [TINY.start("serve"), 'start = "serve"'],
    [
      TINY.start(["serve"], { ready: port(8000) }),
      'start = ["serve"]',
      "ready = { port = 8000, timeout_secs = 60 }",
    ],
    [
      TINY.start("serve", { ready }),
      'start = "serve"',
      'ready = { command = "curl -f x", timeout_secs = 5 }',
    ],
  ] as const) {
    assert.equal(template.recipe, ['from = "tiny"', "", "[[step]]", ...lines, ""].join("\n"));
  }
});

test("odd text is written as a string of TOML", () => {
  for (const [given, written] of [
    ['a "quoted" \\ word', String.raw`"a \"quoted\" \\ word"`],
    ["two\nlines\r\n\ttab", String.raw`"two\nlines\r\n\ttab"`],
    ["héllo 😀 \u2028", '"héllo 😀 \u2028"'],
    ["\x00\x01\x1f\x7f\x80", '"\\u0000\\u0001\\u001f\\u007f\x80"'],
    ["", '""'],
  ] as const) {
    assert.equal(Template.fromSnapshot(given).recipe, `from = ${written}\n`);
    const odd = TINY.env({ [given]: given });
    assert(odd.recipe.includes(`env = { ${written} = ${written} }`), odd.recipe);
  }
  assert.throws(() => TINY.run("half \ud83d"), { name: "ForkdError", message: /not Unicode/ });
  assert.throws(() => port(80.5), { name: "ForkdError", message: /no whole number/ });
});

test("a step leaves the template as it is", () => {
  const [first, second] = [TINY.run("a"), TINY.run("b")];
  assert.equal(TINY.recipe, 'from = "tiny"\n');
  assert(!first.recipe.includes('"b"') && !second.recipe.includes('"a"'));
});

test("a build tells of its steps and gives the snapshot", async () => {
  using program = new Program(BUILT);
  const seen: BuildStep[] = [];
  const built = await TINY.run("true").build("app", {
    onStep: (step) => seen.push(step),
    program: program.path,
    client: daemonWithApp().client(),
  });
  const done = { number: 1, of: 1, step: "run true", ms: 1.5, status: "done" };
  assert.deepEqual(seen.map((step) => step.status), ["running", "done"]);
  assert.deepEqual([built.tag, built.ms, built.snapshot.info.status], ["app", 2.5, "ready"]);
  assert.deepEqual(built.steps, [{ ...done, snapshotTag: "step-1" }]);
});

test("the program is called with the options and the recipe", async () => {
  using program = new Program(BUILT);
  const client = daemonWithApp().client();
  await TINY.build(undefined, { program: program.path, client });
  const plain = ["build", "--events", "--file=-"];
  assert.deepEqual(program.called.arguments, [...plain, "--", "."]);
  assert.equal(program.called.recipe, TINY.recipe);
  const options = { context: "-here", fromSnapshot: "base", noCache: true, keep: true };
  await TINY.build("app", { ...options, program: program.path, client });
  const more = ["--tag=app", "--from=base", "--no-cache", "--keep", "--", "-here"];
  assert.deepEqual(program.called.arguments, [...plain, ...more]);
});

test("the program gets the client's daemon, and the token not in its arguments", async () => {
  using program = new Program(BUILT);
  const daemon = daemonWithApp();
  const other = { FORKD_URL: "x", FORKD_SOCKET: "x", FORKD_TOKEN: "x", FORKD_CA_CERT: "x" };
  await within(other, async () => {
    for (const [address, environment] of [
      ["unix:/no/such.sock", { FORKD_SOCKET: "/no/such.sock" }],
      ["http://127.0.0.1:1", { FORKD_URL: "http://127.0.0.1:1" }],
    ] as const) {
      const client = new Client(address, {
        token: "secret",
        caCert: "/ca.pem",
        fetch: (url, init) => daemon.fetch(url, init),
      });
      await TINY.build("app", { program: program.path, client });
      const told = { ...environment, FORKD_TOKEN: "secret", FORKD_CA_CERT: "/ca.pem" };
      assert.deepEqual(program.called.environment, told);
      assert(!program.called.arguments.join(" ").includes("secret"));
    }
  });
});

test("the program is found by its variable, else in the path", async () => {
  using program = new Program(BUILT);
  const client = daemonWithApp().client();
  await within({ FORKD_BIN: program.path }, async () => {
    assert.equal((await TINY.build("app", { client })).tag, "app");
  });
  symlinkSync(program.path, `${program.place}/forkd`);
  const path = `${program.place}:${process.env.PATH}`;
  await within({ FORKD_BIN: undefined, PATH: path }, async () => {
    assert.equal((await TINY.build("app", { client })).tag, "app");
  });
});

test("a program that cannot be started is named with the remedy", async () => {
  using program = new Program(BUILT);
  writeFileSync(`${program.place}/plain`, "no program");
  for (const name of ["none", "plain"]) {
    const path = `${program.place}/${name}`;
    const build = TINY.build("app", { program: path, client: daemonWithApp().client() });
    await assert.rejects(build, (error: unknown) => {
      assert(error instanceof errors.ProgramMissingError);
      for (const part of [`\`${path}\``, "install forkd", "`program`", "FORKD_BIN"]) {
        assert(String(error).includes(part), String(error));
      }
      return true;
    });
  }
});

function failed(more: Record<string, unknown>, exit = 1): string {
  return `step("running"); tell("failed", ${JSON.stringify(more)}); process.exitCode = ${exit};`;
}

test("a step that fails has its output, its exit code and its sandbox", async () => {
  using program = new Program(
    failed({
      ...{ message: "exit code 7", hint: "look", number: 2, step: "run x" },
      ...{ exit_code: 7, output: "so\n", sandbox_id: "sb-1" },
    }),
  );
  const build = TINY.build("app", { program: program.path, client: daemonWithApp().client() });
  await assert.rejects(build, {
    ...{ name: "BuildFailedError", message: "step 2, `run x`: exit code 7", hint: "look" },
    ...{ number: 2, step: "run x", exitCode: 7, output: "so\n", sandboxId: "sb-1" },
  });
});

for (const [what, acts, name, message] of [
  ["an API error", failed({ message: "m", code: "tag_taken" }), "TagTakenError", /^m$/],
  ["no daemon", failed({ message: "nobody" }, 3), "UnreachableError", /nobody/],
  ["a bad recipe", failed({ message: "bad recipe" }), "BuildFailedError", /^bad recipe$/],
  [
    "another version",
    'console.error("unexpected argument"); process.exitCode = 2;',
    "BuildFailedError",
    /with 2: unexpected argument$/,
  ],
  ["another program", 'console.log("a");', "NotUnderstoodError", /"a"/],
  ["other JSON", "console.log(7);", "NotUnderstoodError", /no event/],
] as const) {
  test(`what is no fault of a step has the error of its kind: ${what}`, async () => {
    using program = new Program(acts);
    const build = TINY.build("app", { program: program.path, client: daemonWithApp().client() });
    await assert.rejects(build, { name, message });
  });
}

test("an error of the callback ends the build in order", async () => {
  using program = new Program(PATIENT);
  const onStep = (): never => {
    throw new Error("no more");
  };
  const client = daemonWithApp().client();
  const build = TINY.build("app", { program: program.path, client, onStep });
  await assert.rejects(build, { message: "no more" });
  assert(program.wasInterrupted);
});

test("a build that is aborted ends in order", async () => {
  using program = new Program(PATIENT);
  const controller = new AbortController();
  const onStep = (): void => controller.abort(new Error("enough"));
  const options = { program: program.path, signal: controller.signal };
  const client = daemonWithApp().client();
  const build = TINY.build("app", { ...options, onStep, client });
  await assert.rejects(build, { message: "enough" });
  assert(program.wasInterrupted);
  await assert.rejects(TINY.build("app", { ...options, client }), { message: "enough" });
});

test("a build that is aborted while its program starts ends", { timeout: 30_000 }, async () => {
  using program = new Program(PATIENT);
  const controller = new AbortController();
  const options = { program: program.path, signal: controller.signal };
  const build = TINY.build("app", { ...options, client: daemonWithApp().client() });
  controller.abort(new Error("enough"));
  await assert.rejects(build, { message: "enough" });
});
