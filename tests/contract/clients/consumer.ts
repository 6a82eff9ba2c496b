// Against a running gateway: node consumer.js URL KEY. Prints what it saw as one JSON object.
import { createClient, createConfig } from "./tangram_client/client/index.js";
import { listActions, submitAction, waitForActions } from "./tangram_client/sdk.gen.js";
import type { Action, ProblemDetails, SubmitActionRequest } from "./tangram_client/types.gen.js";

const [url, key] = process.argv.slice(2);
const client = createClient(createConfig({ baseUrl: url, auth: () => key }));
const task = "typescript";

function squared(n: number): SubmitActionRequest {
  return {
    task,
    kind: "exec",
    argv: ["python3", "-c", `print(${n} ** 2)`],
    demand: { cpu: { min: 0.5, max: 1 }, memory_mib: 64 },
    elasticity: { model: "amdahl", parallel_fraction: 0.5 },
    labels: { n: String(n) },
  };
}

async function submitted(n: number): Promise<string> {
  const headers = { "Idempotency-Key": `typescript-${n}` };
  const { data } = await submitAction({ client, body: squared(n), headers, throwOnError: true });
  return data.id;
}

async function settled(ids: string[]): Promise<Action[]> {
  const done: Action[] = [];
  let pending = ids;
  while (pending.length > 0) {
    const body = { ids: pending, until: "all" as const, timeout_s: 30 };
    const { data } = await waitForActions({ client, body, throwOnError: true });
    done.push(...data.settled);
    pending = data.pending;
  }
  return done;
}

async function listed(): Promise<string[]> {
  const found: string[] = [];
  let cursor: string | undefined;
  do {
    const { data } = await listActions({ client, query: { task, limit: 2, cursor }, throwOnError: true });
    found.push(...data.items.map((action) => action.id));
    cursor = data.next_cursor;
  } while (cursor !== undefined);
  return found;
}

async function refused(): Promise<ProblemDetails> {
  const { error } = await submitAction({ client, body: { ...squared(0), demand: { memory_mib: 1 } } });
  if (error === undefined) throw new Error("it was accepted");
  return error;
}

const ids = await Promise.all([2, 3, 4].map(submitted));
const again = await submitted(2);
const done = await settled(ids);
const problem = await refused();
const seen = {
  ids,
  again,
  outcomes: done.map((action) => action.outcome),
  printed: Object.fromEntries(done.map((action) => [action.labels?.n, action.result?.stdout?.text])),
  exit_codes: done.map((action) => action.result?.exit_code),
  listed: await listed(),
  problem: { code: problem.code, status: problem.status, fields: problem.errors?.map((error) => error.field) },
};
console.log(JSON.stringify(seen));
