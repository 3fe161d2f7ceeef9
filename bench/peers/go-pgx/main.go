// A consumer as the Dapr Go SDK's documentation shows it, with the dedup row, the business row and
// the outbox row of an event in one database transaction. Settings: README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dapr/go-sdk/service/common"
	daprd "github.com/dapr/go-sdk/service/grpc"
)

const (
	pubsub   = "benchpubsub"
	topic    = "bench"
	topicOut = "bench-out"
)

// An order, as the events carry it.
type order struct {
	OrderID  string `json:"orderId"`
	Customer string `json:"customer"`
	Cents    int64  `json:"cents"`
	// How often handling this event fails before it succeeds.
	Failures int    `json:"failures"`
	Note     string `json:"note"`
}

// What one event writes.
type write struct {
	key         []byte
	fingerprint []byte
	order       order
	messageID   string
	content     []byte
}

// A store commits one event's rows, or none of them when its key is there already.
type store interface {
	commit(ctx context.Context, w write) error
	quarantine(ctx context.Context, id, reason string, body []byte) error
	relay(ctx context.Context, publish func(batch []outgoing) error) (int, error)
}

type consumer struct {
	store store
	park  time.Duration

	mutex  sync.Mutex
	failed map[string]int
}

func (c *consumer) handle(ctx context.Context, e *common.TopicEvent) (retry bool, err error) {
	if c.park > 0 {
		time.Sleep(c.park)
	}
	var o order
	if err := e.Struct(&o); err != nil {
		return true, c.store.quarantine(ctx, e.ID, "data_not_decodable", e.RawData)
	}
	if o.Failures > 0 && c.failsAgain(o) {
		return true, fmt.Errorf("a dependency is away")
	}
	w, err := rows(e, o)
	if err != nil {
		return true, err
	}
	// (false, err) would be DROP: the event would be lost.
	if err := c.store.commit(ctx, w); err != nil {
		log.Printf("committing: %v", err)
		return true, err
	}
	return true, nil
}

func (c *consumer) failsAgain(o order) bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.failed[o.OrderID]++
	return c.failed[o.OrderID] <= o.Failures
}

func rows(e *common.TopicEvent, o order) (write, error) {
	key := digest([]byte(topic), []byte(e.Source), []byte(e.ID))
	message := map[string]any{
		"specversion":     "1.0",
		"id":              fmt.Sprintf("%x", digest(key, []byte("out"))),
		"source":          "bench-consumer",
		"type":            "bench.order.accepted.v1",
		"datacontenttype": "application/json",
		"time":            time.Now().UTC().Format(time.RFC3339Nano),
		"data":            map[string]any{"orderId": o.OrderID, "cents": o.Cents},
	}
	content, err := json.Marshal(message)
	if err != nil {
		return write{}, err
	}
	return write{
		key:         key,
		fingerprint: digest([]byte(e.Type), e.RawData),
		order:       o,
		messageID:   message["id"].(string),
		content:     content,
	}, nil
}

func main() {
	url, port := os.Getenv("STORE_URL"), os.Getenv("APP_PORT")
	ctx := context.Background()
	var s store
	var err error
	if path, ok := strings.CutPrefix(url, "sqlite://"); ok {
		s, err = openSQLite(path)
	} else if name, ok := strings.CutPrefix(url, "dapr://"); ok {
		s = openStateStore(name, os.Getenv("DAPR_GRPC_PORT"))
	} else {
		s, err = openPostgres(ctx, url, os.Getenv("MODE"))
	}
	if err != nil {
		log.Fatalf("the store: %v", err)
	}
	parkMillis, _ := strconv.Atoi(os.Getenv("BENCH_PARK_MS"))
	c := &consumer{store: s, park: time.Duration(parkMillis) * time.Millisecond, failed: map[string]int{}}

	service, err := daprd.NewService("127.0.0.1:" + port)
	if err != nil {
		log.Fatalf("listening: %v", err)
	}
	subscription := &common.Subscription{PubsubName: pubsub, Topic: topic, Route: "/orders"}
	if err := service.AddTopicEventHandler(subscription, c.handle); err != nil {
		log.Fatalf("subscribing: %v", err)
	}
	if os.Getenv("RELAY") == "1" {
		go runRelay(ctx, s, os.Getenv("DAPR_GRPC_PORT"))
	}
	if err := service.Start(); err != nil {
		log.Fatalf("serving: %v", err)
	}
}
