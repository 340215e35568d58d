import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

/** The pause between two looks at what is waited for. */
const POLL_INTERVAL_MS = 20;
/** How long a start, a stop or the arrival of messages may take by default. */
const TIMEOUT_MS = 30_000;
/** How much of the log an error shows. */
const LOG_TAIL_CHARS = 2_000;

export interface PostriderOptions {
  /** The URI of MongoDB, a replica set. */
  readonly uri: string;
  /** The database of the outbox. Default: the one in the URI. */
  readonly database?: string;
  /** Default: the environment variable `POSTRIDER_BIN`, else `postrider` on `PATH`. */
  readonly binary?: string;
  readonly collectionPrefix?: string;
  /** Further configuration, as in postrider.toml: `{ "relay.poll_interval": "100ms" }`. */
  readonly settings?: Readonly<Record<string, string | number | boolean>>;
  /** How long the start may take. Default: 30 000. */
  readonly timeoutMs?: number;
}

/** A message that Postrider delivered. */
export interface Message {
  readonly id: string;
  readonly key: string | null;
  readonly type: string;
  readonly destination: string | null;
  readonly contentType: string | null;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly timestamp: string;
  /** JSON as it is, text as a string; `undefined` if it is neither. */
  readonly payload?: unknown;
  /** A payload that is neither JSON nor text. */
  readonly payloadBase64?: string;
}

/**
 * Starts Postrider with a sink that is a file, and waits until it is ready: for tests of an application that assert on
 * the messages which it sends. Stop it when the test ends.
 */
export async function startPostrider(options: PostriderOptions): Promise<Postrider> {
  const folder = await mkdtemp(join(tmpdir(), "postrider-test-"));
  const config = join(folder, "postrider.toml");
  const sink = join(folder, "messages.ndjson");
  await writeFile(config, configuration(options, sink), { mode: 0o600 });

  const binary = options.binary || process.env["POSTRIDER_BIN"] || "postrider";
  const environment = Object.entries(process.env).filter(
    ([name]) => name !== "POSTRIDER_CONFIG" && !name.startsWith("POSTRIDER__"),
  );
  const child = spawn(binary, ["run", "--config", config], {
    env: Object.fromEntries(environment),
    stdio: ["ignore", "ignore", "pipe"],
  });
  const postrider = new Postrider(child, folder, sink);
  try {
    await postrider.untilReady(options.timeoutMs ?? TIMEOUT_MS);
  } catch (error) {
    await postrider.stop();
    throw error;
  }
  return postrider;
}

/** A running Postrider, started by {@link startPostrider}. */
export class Postrider {
  readonly #child: ChildProcess;
  readonly #folder: string;
  readonly #sink: string;
  readonly #ended: Promise<void>;
  readonly #kill = () => this.#child.kill("SIGKILL");
  #log = "";
  #failure: Error | undefined;
  #running = true;

  /** @internal */
  constructor(child: ChildProcess, folder: string, sink: string) {
    this.#child = child;
    this.#folder = folder;
    this.#sink = sink;
    child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      this.#log += text;
    });
    this.#ended = new Promise<void>((resolve) => {
      child.once("error", (error) => {
        this.#failure = new Error(`${child.spawnfile} did not start; set POSTRIDER_BIN to the binary`, {
          cause: error,
        });
        resolve();
      });
      child.once("close", () => resolve());
    }).then(() => {
      this.#running = false;
      process.off("exit", this.#kill);
    });
    process.once("exit", this.#kill); // A test that fails leaves no process.
  }

  /** The log so far. */
  get log(): string {
    return this.#log;
  }

  /** All messages so far, or those of a key, in the order of their delivery; repetitions only once. */
  async messages(key?: string): Promise<Message[]> {
    const text = await readFile(this.#sink, "utf8").catch((error) => {
      if (error.code === "ENOENT") return "";
      throw error;
    });
    const messages = new Map<string, Message>();
    for (const line of text.split("\n")) {
      const message = parsed(line);
      if (message !== undefined && !messages.has(message.id)) messages.set(message.id, message);
    }
    return [...messages.values()].filter((message) => key === undefined || message.key === key);
  }

  /** Waits until there are that many messages (of the key), and returns all of them. */
  async waitForMessages(count: number, options: { key?: string; timeoutMs?: number } = {}): Promise<Message[]> {
    let messages: Message[] = [];
    const arrived = async () => {
      messages = await this.messages(options.key);
      return messages.length >= count;
    };
    await this.#until(
      arrived,
      options.timeoutMs ?? TIMEOUT_MS,
      () => `${messages.length} of ${count} messages arrived`,
    );
    return messages;
  }

  /** Ends the process and removes its files. */
  async stop(): Promise<void> {
    if (this.#running) this.#child.kill("SIGTERM");
    const late = setTimeout(this.#kill, TIMEOUT_MS);
    await this.#ended;
    clearTimeout(late);
    await rm(this.#folder, { recursive: true, force: true });
  }

  /** @internal */
  async untilReady(timeoutMs: number): Promise<void> {
    const ready = async () => {
      const address = /"address":"([^"]+)"/.exec(this.#log)?.[1];
      if (address === undefined) return false;
      return (await fetch(`http://${address}/readyz`).catch(() => undefined))?.status === 200;
    };
    await this.#until(ready, timeoutMs, () => "it is not ready");
  }

  async #until(condition: () => Promise<boolean>, timeoutMs: number, state: () => string): Promise<void> {
    const deadline = Date.now() + timeoutMs;
    while (!(await condition())) {
      const late = Date.now() > deadline;
      if (this.#running && !late) {
        await pause(POLL_INTERVAL_MS);
        continue;
      }
      if (this.#failure !== undefined) throw this.#failure;
      const what = late ? `${state()} after ${timeoutMs} ms` : `it ended with code ${this.#child.exitCode}`;
      throw new Error(`postrider: ${what}; the end of its log:\n${this.#log.slice(-LOG_TAIL_CHARS)}`);
    }
  }
}

/** A line of the sink; `undefined` for one that is not complete. */
function parsed(line: string): Message | undefined {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** Strings of JSON are strings of TOML. */
function configuration(options: PostriderOptions, sink: string): string {
  const settings = {
    "mongo.uri": options.uri,
    ...(options.database === undefined ? {} : { "mongo.database": options.database }),
    "outbox.collection_prefix": options.collectionPrefix ?? "",
    "sinks.test.kind": "file",
    "sinks.test.path": sink,
    "ops.listen": "127.0.0.1:0",
    "log.format": "json",
    ...options.settings,
  };
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${JSON.stringify(value)}`);
  return `${lines.join("\n")}\n`;
}
