package main

import (
	"context"
	"log"
	"time"

	"github.com/dapr/go-sdk/client"
)

// A message of the outbox.
type outgoing struct {
	seq     int64
	id      string
	content []byte
}

func numbers(batch []outgoing) []int64 {
	all := make([]int64, len(batch))
	for at, message := range batch {
		all[at] = message.seq
	}
	return all
}

// Publishes the outbox in batches; polls ten times a second while there is nothing.
func runRelay(ctx context.Context, s store, daprPort string) {
	sidecar, err := client.NewClientWithPort(daprPort)
	if err != nil {
		log.Fatalf("the sidecar: %v", err)
	}
	publish := func(batch []outgoing) error {
		events := make([]interface{}, len(batch))
		for at, message := range batch {
			events[at] = client.PublishEventsEvent{
				EntryID: message.id, Data: message.content, ContentType: "application/cloudevents+json",
			}
		}
		return sidecar.PublishEvents(ctx, pubsub, topicOut, events).Error
	}
	for {
		count, err := s.relay(ctx, publish)
		if err != nil {
			log.Printf("relaying: %v", err)
		}
		if count == 0 {
			time.Sleep(100 * time.Millisecond)
		}
	}
}
