// Publishes the outbox in batches; polls ten times a second while there is nothing.
"use strict";

const sleep = (millis) => new Promise((resolve) => setTimeout(resolve, millis));

async function relayBatch(pool, sidecar, pubsub, topic) {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    const { rows } = await client.query(
      "SELECT seq, message_id, content FROM outbox ORDER BY seq LIMIT 100 FOR UPDATE SKIP LOCKED",
    );
    if (rows.length > 0) {
      const messages = rows.map((row) => ({
        entryID: row.message_id,
        event: JSON.parse(row.content.toString()),
        contentType: "application/cloudevents+json",
      }));
      const { failedMessages } = await sidecar.pubsub.publishBulk(pubsub, topic, messages);
      if (failedMessages.length > 0) throw new Error("some were not published");
      await client.query("DELETE FROM outbox WHERE seq = ANY($1)", [rows.map((row) => row.seq)]);
    }
    await client.query("COMMIT");
    return rows.length;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  } finally {
    client.release();
  }
}

async function runRelay(pool, sidecar, pubsub, topic) {
  for (;;) {
    const count = await relayBatch(pool, sidecar, pubsub, topic).catch((error) => {
      console.error("relaying:", error);
      return 0;
    });
    if (count === 0) await sleep(100);
  }
}

module.exports = { runRelay };
