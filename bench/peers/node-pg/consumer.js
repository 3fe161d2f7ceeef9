// A consumer as the Dapr Node SDK's documentation shows it, over gRPC, with the dedup row, the
// business row and the outbox row of an event in one database transaction. Settings: README.md.
"use strict";

const { createHash } = require("node:crypto");
const { DaprServer, DaprPubSubStatusEnum, CommunicationProtocolEnum, LogLevel } = require("@dapr/dapr");
const { Pool } = require("pg");
const { runRelay } = require("./relay");

const PUBSUB = "benchpubsub";
const TOPIC = "bench";
const TOPIC_OUT = "bench-out";

// Named, so that pg prepares each once a connection.
const INBOX = {
  name: "inbox",
  text: "INSERT INTO inbox (key, fingerprint, committed_at) VALUES ($1, $2, now()) ON CONFLICT DO NOTHING",
};
const ORDER = {
  name: "order",
  text: "INSERT INTO bench_order (event_id, customer, cents, note) VALUES ($1, $2, $3, $4)",
};
const OUTBOX = {
  name: "outbox",
  text: "INSERT INTO outbox (pubsub, topic, message_id, content, created_at) VALUES ($1, $2, $3, $4, now())",
};

const pool = new Pool({ connectionString: process.env.STORE_URL, max: 16, min: 16 });
const parkMillis = Number(process.env.BENCH_PARK_MS ?? 0);
const failed = new Map();

// Sixteen bytes that stand for these fields, each with its length before it.
function digest(...fields) {
  const hash = createHash("sha256");
  for (const field of fields) {
    const length = Buffer.alloc(8);
    length.writeBigUInt64BE(BigInt(Buffer.byteLength(field)));
    hash.update(length).update(field);
  }
  return hash.digest().subarray(0, 16);
}

function failsAgain(order) {
  if (!order.failures) return false;
  const times = (failed.get(order.orderId) ?? 0) + 1;
  failed.set(order.orderId, times);
  return times <= order.failures;
}

// Over gRPC the SDK hands over the data alone, so the event's id has to be in it.
async function commit(order) {
  const key = digest(TOPIC, order.orderId);
  const id = digest(key, "out").toString("hex");
  const message = {
    specversion: "1.0",
    id,
    source: "bench-consumer",
    type: "bench.order.accepted.v1",
    datacontenttype: "application/json",
    time: new Date().toISOString(),
    data: { orderId: order.orderId, cents: order.cents },
  };
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const fingerprint = digest(JSON.stringify(order));
    const done = await client.query({ ...INBOX, values: [key, fingerprint] });
    if (done.rowCount === 0) {
      await client.query("ROLLBACK");
      return;
    }
    await client.query({ ...ORDER, values: [order.orderId, order.customer, order.cents, order.note] });
    const content = Buffer.from(JSON.stringify(message));
    await client.query({ ...OUTBOX, values: [PUBSUB, TOPIC_OUT, id, content] });
    await client.query("COMMIT");
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  } finally {
    client.release();
  }
}

async function quarantine(order) {
  const text =
    "INSERT INTO exception (event_id, reason, body) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
  await pool.query(text, [order.orderId, "data_not_decodable", Buffer.from(JSON.stringify(order))]);
}

async function handle(order) {
  try {
    if (parkMillis) await new Promise((resolve) => setTimeout(resolve, parkMillis));
    if (typeof order.cents !== "number") {
      await quarantine(order);
    } else if (failsAgain(order)) {
      return DaprPubSubStatusEnum.RETRY;
    } else {
      await commit(order);
    }
    return DaprPubSubStatusEnum.SUCCESS;
  } catch (error) {
    // Thrown, it would be answered SUCCESS and the event would be lost.
    console.error(error);
    return DaprPubSubStatusEnum.RETRY;
  }
}

async function main() {
  const server = new DaprServer({
    serverHost: "127.0.0.1",
    serverPort: process.env.APP_PORT,
    communicationProtocol: CommunicationProtocolEnum.GRPC,
    logger: { level: LogLevel.Error },
    clientOptions: {
      daprHost: "127.0.0.1",
      daprPort: process.env.DAPR_GRPC_PORT,
      communicationProtocol: CommunicationProtocolEnum.GRPC,
      logger: { level: LogLevel.Error },
    },
  });
  await server.pubsub.subscribe(PUBSUB, TOPIC, handle);
  await server.start();
  if (process.env.RELAY === "1") runRelay(pool, server.client, PUBSUB, TOPIC_OUT);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
