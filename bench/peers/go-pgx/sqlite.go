package main

import (
	"context"
	"database/sql"

	_ "github.com/mattn/go-sqlite3"
)

// One connection: SQLite has one writer at a time, and a pool of them waits in a sleeping lock.
type sqlite struct {
	db                        *sql.DB
	inbox, business, outgoing *sql.Stmt
}

func openSQLite(path string) (store, error) {
	db, err := sql.Open("sqlite3", "file:"+path+
		"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	s := &sqlite{db: db}
	for text, statement := range map[string]**sql.Stmt{
		`INSERT INTO inbox (key, fingerprint, committed_at) VALUES (?, ?, unixepoch() * 1000)
			ON CONFLICT DO NOTHING`: &s.inbox,
		`INSERT INTO bench_order (event_id, customer, cents, note) VALUES (?, ?, ?, ?)`: &s.business,
		`INSERT INTO outbox (pubsub, topic, message_id, content, created_at)
			VALUES (?, ?, ?, ?, unixepoch() * 1000)`: &s.outgoing,
	} {
		if *statement, err = db.Prepare(text); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *sqlite) commit(ctx context.Context, w write) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	done, err := tx.Stmt(s.inbox).Exec(w.key, w.fingerprint)
	if err != nil {
		return err
	}
	if count, err := done.RowsAffected(); err != nil || count == 0 {
		return err
	}
	o := w.order
	if _, err := tx.Stmt(s.business).Exec(o.OrderID, o.Customer, o.Cents, o.Note); err != nil {
		return err
	}
	if _, err := tx.Stmt(s.outgoing).Exec(pubsub, topicOut, w.messageID, w.content); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *sqlite) quarantine(ctx context.Context, id, reason string, body []byte) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO exception (event_id, reason, body)
		VALUES (?, ?, ?) ON CONFLICT DO NOTHING`, id, reason, body)
	return err
}

// No lock to skip: the process is alone. The write transaction is not held while publishing.
func (s *sqlite) relay(ctx context.Context, publish func(batch []outgoing) error) (int, error) {
	rows, err := s.db.QueryContext(ctx,
		`SELECT seq, message_id, content FROM outbox ORDER BY seq LIMIT 100`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var batch []outgoing
	for rows.Next() {
		var o outgoing
		if err := rows.Scan(&o.seq, &o.id, &o.content); err != nil {
			return 0, err
		}
		batch = append(batch, o)
	}
	if err := rows.Close(); err != nil || len(batch) == 0 {
		return 0, err
	}
	if err := publish(batch); err != nil {
		return 0, err
	}
	last := batch[len(batch)-1].seq
	_, err = s.db.ExecContext(ctx, `DELETE FROM outbox WHERE seq <= ?`, last)
	return len(batch), err
}
