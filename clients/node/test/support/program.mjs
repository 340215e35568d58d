import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { eventually } from "./environment.mjs";

/** Starts a program of examples/. */
export function startExample(name, env) {
  return new Program(fileURLToPath(new URL(`../../examples/${name}`, import.meta.url)), env);
}

/** A Node program that is running. */
class Program {
  #child;
  #ended;
  #kill = () => this.#child.kill("SIGKILL");
  stdout = "";
  stderr = "";

  constructor(path, env) {
    this.#child = spawn(process.execPath, [path], { env: { ...process.env, ...env }, stdio: "pipe" });
    for (const output of ["stdout", "stderr"]) {
      this.#child[output].setEncoding("utf8").on("data", (text) => {
        this[output] += text;
      });
    }
    process.once("exit", this.#kill);
    this.#ended = new Promise((resolve) => this.#child.once("close", resolve)).then(() => {
      process.off("exit", this.#kill);
    });
  }

  get lines() {
    return this.stdout.split("\n").slice(0, -1);
  }

  write(text) {
    this.#child.stdin.write(text);
  }

  /** Closes its input, waits for its end, and returns its exit code. */
  async finish() {
    this.#child.stdin.end();
    await this.#ended;
    return this.#child.exitCode;
  }

  /** Asks it to stop, waits for its end, and returns its exit code. */
  async stop() {
    this.#child.kill("SIGTERM");
    await this.#ended;
    return this.#child.exitCode;
  }

  /** Ends it at once, wherever it is. */
  async kill() {
    this.#kill();
    await this.#ended;
  }

  /** Waits for a condition; fails at once if the program ends before. */
  async until(what, condition) {
    const met = async () => {
      if (await condition()) return true;
      if (this.#child.exitCode !== null) throw new Error(`${what}: the program ended\n${this.stdout}${this.stderr}`);
      return false;
    };
    await eventually(what, met, { timeoutMs: 120_000, state: () => `\n${this.stdout}${this.stderr}` }).catch(
      (error) => {
        error.message += `\n${this.stdout}${this.stderr}`;
        throw error;
      },
    );
  }
}
