import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MongoClient } from "mongodb";
import { environment, eventually } from "./environment.mjs";

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/**
 * A server of a test's own: a standalone one, or a replica set of one member. No other process replaces its fail points,
 * and it ends the open transaction of a program that was killed after 3 s: by default MongoDB does so after 60 s, and
 * until then what the transaction has written waits.
 */
export async function startMongod({ replicaSet } = {}) {
  const folder = await mkdtemp(join(tmpdir(), "postrider-mongod-"));
  const port = await freePort();
  const options = ["--dbpath", folder, "--port", port, "--bind_ip", "127.0.0.1", "--nounixsocket"];
  options.push("--wiredTigerCacheSizeGB", "0.25", "--setParameter", "enableTestCommands=1");
  options.push(
    "--setParameter",
    "transactionLifetimeLimitSeconds=3",
    "--setParameter",
    "diagnosticDataCollectionEnabled=false",
  );
  if (replicaSet) options.push("--replSet", replicaSet, "--oplogSize", "64");
  const child = spawn(environment("POSTRIDER_TEST_MONGOD"), options.map(String), { stdio: "ignore" });
  const kill = () => child.kill("SIGKILL");
  process.once("exit", kill);
  const ended = new Promise((resolve) => child.once("close", resolve));
  const stop = async () => {
    kill();
    await ended;
    process.off("exit", kill);
    await rm(folder, { recursive: true, force: true });
  };

  const client = new MongoClient(`mongodb://127.0.0.1:${port}/?directConnection=true`);
  try {
    await client.connect();
    const admin = client.db("admin");
    if (replicaSet) {
      await admin.command({
        replSetInitiate: { _id: replicaSet, members: [{ _id: 0, host: `127.0.0.1:${port}` }] },
      });
    }
    await eventually("a primary", async () => (await admin.command({ hello: 1 })).isWritablePrimary);
  } catch (error) {
    await stop();
    throw error;
  } finally {
    await client.close();
  }
  return { uri: `mongodb://127.0.0.1:${port}/${replicaSet ? `?replicaSet=${replicaSet}` : ""}`, stop };
}
