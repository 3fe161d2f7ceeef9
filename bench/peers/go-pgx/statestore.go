package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/dapr/go-sdk/client"
)

// Dapr's own outbox: the sidecar publishes what a state transaction writes. It has no dedup row, so
// an event that comes twice is published twice.
type stateStore struct {
	name string
	// Connects at the first event: the sidecar waits for us before it starts.
	sidecar func() (client.Client, error)
}

// What is written and, by the sidecar, published.
type accepted struct {
	OrderID string `json:"orderId"`
	Cents   int64  `json:"cents"`
	// The time of the effect, in microseconds.
	AtMicros int64 `json:"atMicros"`
}

func openStateStore(name, daprPort string) store {
	connect := func() (client.Client, error) { return client.NewClientWithPort(daprPort) }
	return &stateStore{name: name, sidecar: sync.OnceValues(connect)}
}

func (s *stateStore) commit(ctx context.Context, w write) error {
	o := w.order
	value, err := json.Marshal(accepted{o.OrderID, o.Cents, time.Now().UnixMicro()})
	if err != nil {
		return err
	}
	sidecar, err := s.sidecar()
	if err != nil {
		return err
	}
	// Without a content type: as JSON it would need a module of Redis that Debian's has not.
	return sidecar.ExecuteStateTransaction(ctx, s.name, nil, []*client.StateOperation{{
		Type: client.StateOperationTypeUpsert,
		Item: &client.SetStateItem{Key: o.OrderID, Value: value},
	}})
}

func (s *stateStore) quarantine(context.Context, string, string, []byte) error {
	return errors.New("nothing is quarantined in this workload")
}

func (s *stateStore) relay(context.Context, func([]outgoing) error) (int, error) {
	return 0, errors.New("the sidecar relays")
}
