package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	insertInbox = `INSERT INTO inbox (key, fingerprint, committed_at) VALUES ($1, $2, now())
		ON CONFLICT DO NOTHING`
	insertOrder = `INSERT INTO bench_order (event_id, customer, cents, note) VALUES ($1, $2, $3, $4)`
	insertOut   = `INSERT INTO outbox (pubsub, topic, message_id, content, created_at)
		VALUES ($1, $2, $3, $4, now())`
	// The three in one statement, which is a transaction of its own.
	insertAll = `WITH fresh AS (
			INSERT INTO inbox (key, fingerprint, committed_at) VALUES ($1, $2, now())
			ON CONFLICT DO NOTHING RETURNING 1
		), placed AS (
			INSERT INTO bench_order (event_id, customer, cents, note)
			SELECT $3, $4, $5, $6 FROM fresh
		)
		INSERT INTO outbox (pubsub, topic, message_id, content, created_at)
		SELECT $7, $8, $9, $10, now() FROM fresh`
)

type postgres struct {
	pool *pgxpool.Pool
	cte  bool
}

func openPostgres(ctx context.Context, url, mode string) (store, error) {
	if mode != "tx" && mode != "cte" {
		return nil, fmt.Errorf("MODE is tx or cte, not %q", mode)
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	config.MinConns = 16
	// The default, said aloud: every statement is prepared once a connection.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &postgres{pool: pool, cte: mode == "cte"}, pool.Ping(ctx)
}

func (p *postgres) commit(ctx context.Context, w write) error {
	o := w.order
	if p.cte {
		_, err := p.pool.Exec(ctx, insertAll, w.key, w.fingerprint,
			o.OrderID, o.Customer, o.Cents, o.Note, pubsub, topicOut, w.messageID, w.content)
		return err
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, insertInbox, w.key, w.fingerprint)
		if err != nil || done.RowsAffected() == 0 {
			return err
		}
		if _, err := tx.Exec(ctx, insertOrder, o.OrderID, o.Customer, o.Cents, o.Note); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, insertOut, pubsub, topicOut, w.messageID, w.content)
		return err
	})
}

func (p *postgres) quarantine(ctx context.Context, id, reason string, body []byte) error {
	_, err := p.pool.Exec(ctx, `INSERT INTO exception (event_id, reason, body) VALUES ($1, $2, $3)
		ON CONFLICT DO NOTHING`, id, reason, body)
	return err
}

// The usual relay: lock a batch that nobody else has, publish it, delete it.
func (p *postgres) relay(ctx context.Context, publish func(batch []outgoing) error) (int, error) {
	count := 0
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT seq, message_id, content FROM outbox ORDER BY seq
			LIMIT 100 FOR UPDATE SKIP LOCKED`)
		if err != nil {
			return err
		}
		batch, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (outgoing, error) {
			var o outgoing
			err := row.Scan(&o.seq, &o.id, &o.content)
			return o, err
		})
		if err != nil || len(batch) == 0 {
			return err
		}
		if err := publish(batch); err != nil {
			return err
		}
		count = len(batch)
		_, err = tx.Exec(ctx, `DELETE FROM outbox WHERE seq = ANY($1)`, numbers(batch))
		return err
	})
	return count, err
}
