// E2B's JavaScript client, unmodified, against a server of ours. Prints one JSON object: a result for each case.
//
// It runs in a directory with the installed package. Address and key are in the environment, as the client reads them.

import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const require = createRequire(pathToFileURL(`${process.cwd()}/`))
const { Sandbox } = await import(pathToFileURL(require.resolve('e2b')).href)

const sleep = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds))

async function raised(call) {
  try {
    return ['nothing', String(await call())]
  } catch (error) {
    return [error.constructor.name, error.exitCode ?? null]
  }
}

const cases = {
  async command(sandbox) {
    const ran = await sandbox.commands.run('echo out; echo err >&2', { cwd: '/tmp', envs: { A: '1' } })
    return [ran.stdout, ran.stderr, ran.exitCode]
  },
  exit_code: (sandbox) => raised(() => sandbox.commands.run('exit 3')),
  timeout: (sandbox) => raised(() => sandbox.commands.run('sleep 60', { timeoutMs: 1000 })),
  variables: async (sandbox) => (await sandbox.commands.run('echo $FROM_CREATE')).stdout,
  async concurrent(sandbox) {
    const ran = await Promise.all([0, 1, 2, 3].map((each) => sandbox.commands.run(`echo ${each}`)))
    return ran.map((each) => each.stdout)
  },
  async background(sandbox) {
    const handle = await sandbox.commands.run('read a; echo got:$a; read b; echo $b', { background: true, stdin: true })
    await sandbox.commands.sendStdin(handle.pid, 'x\n')
    await sandbox.files.write('/tmp/beside', 'written beside a running command')
    const listed = (await sandbox.commands.list()).some((each) => each.pid === handle.pid)
    await sandbox.commands.sendStdin(handle.pid, 'y\n')
    return [listed, (await handle.wait()).stdout, await sandbox.commands.kill(handle.pid)]
  },
  async large_output(sandbox) {
    return (await sandbox.commands.run("head -c 2000000 /dev/zero | tr '\\0' x")).stdout.length
  },
  async files(sandbox) {
    await sandbox.files.write('/tmp/d/é x', 'text')
    await sandbox.files.write('/tmp/d/stream', new Blob(['s'.repeat(2000000)]))
    const names = (await sandbox.files.list('/tmp/d')).map((each) => each.name).sort()
    const moved = (await sandbox.files.rename('/tmp/d/é x', '/tmp/d/moved')).path
    const size = (await sandbox.files.read('/tmp/d/stream', { format: 'bytes' })).length
    const made = [await sandbox.files.makeDir('/tmp/new'), await sandbox.files.makeDir('/tmp/new')]
    await sandbox.files.remove('/tmp/d/stream')
    const there = [await sandbox.files.exists('/tmp/d/stream'), await sandbox.files.exists('/tmp/d/moved')]
    return [names, moved, await sandbox.files.read('/tmp/d/moved'), size, made, there]
  },
  missing_file: (sandbox) => raised(() => sandbox.files.read('/tmp/nothing')),
  async signed_url(sandbox) {
    await sandbox.files.write('/tmp/signed', 'signed')
    const url = await sandbox.downloadUrl('/tmp/signed', { useSignatureExpiration: 60 })
    const wrong = await fetch(url.replace('v1_', 'v1_A'))
    return [await (await fetch(url)).text(), wrong.status]
  },
  async terminal(sandbox) {
    let seen = ''
    const onData = (data) => { seen += Buffer.from(data).toString() }
    const handle = await sandbox.pty.create({ rows: 24, cols: 80, onData })
    await sandbox.pty.resize(handle.pid, { rows: 40, cols: 100 })
    await sandbox.pty.sendInput(handle.pid, Buffer.from('stty size; exit 5\n'))
    return [await raised(() => handle.wait()), seen.includes('40 100')]
  },
  async watched(sandbox) {
    const events = new Set()
    const watch = await sandbox.files.watchDir('/tmp/new', (event) => events.add(`${event.name} ${event.type}`))
    await sandbox.files.write('/tmp/new/f', 'x')
    for (let tries = 0; tries < 300 && !events.has('f write'); tries++) await sleep(0.1)
    await watch.stop()
    return [...events].sort()
  },
  async ports(sandbox) {
    const server = await sandbox.commands.run('cd /tmp && exec python3 -m http.server 18125', { background: true })
    const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '18125' }
    let content = ''
    for (let tries = 0; tries < 100 && content !== 'signed'; tries++) {
      content = await (await fetch(`${process.env.E2B_SANDBOX_URL}/signed`, { headers })).text()
      if (content !== 'signed') await sleep(0.1)
    }
    return [content, await server.kill(), sandbox.getHost(3000) === `3000-${sandbox.sandboxId}.ports.example`]
  },
  async listed(sandbox) {
    const pages = Sandbox.list({ query: { metadata: { 'odd key': 'v=1&x é' } } })
    return (await pages.nextItems()).map((each) => each.sandboxId === sandbox.sandboxId)
  },
  async paused(sandbox) {
    const said = [await sandbox.pause(), await sandbox.isRunning()]
    const resumed = await Sandbox.connect(sandbox.sandboxId, { timeoutMs: 120000 })
    return [...said, await resumed.isRunning(), await resumed.files.read('/tmp/signed')]
  },
  async killed(sandbox) {
    return [await sandbox.kill(), await sandbox.kill(), await sandbox.isRunning()]
  },
}

const sandbox = await Sandbox.create({
  timeoutMs: 300000,
  metadata: { 'odd key': 'v=1&x é' },
  envs: { FROM_CREATE: 'yes' },
})
const results = {}
for (const [name, run] of Object.entries(cases)) {
  try {
    results[name] = await run(sandbox)
  } catch (error) {
    results[name] = `${error.constructor.name}: ${error.message}`
  }
}
console.log(JSON.stringify(results))
process.exit(0)
