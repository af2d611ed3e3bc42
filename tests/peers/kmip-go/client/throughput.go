package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ovh/kmip-go/kmipclient"
)

// throughput gets one key over some connections as fast as the server answers, and prints the rate
// and the latencies.
func throughput(address string, options []kmipclient.Option, clients int, howLong time.Duration) error {
	ctx := context.Background()
	first, err := kmipclient.Dial(address, options...)
	if err != nil {
		return err
	}
	defer first.Close()
	created, err := first.Create().AES(256, cipherMask).ExecContext(ctx)
	if err != nil {
		return err
	}
	var (
		group    sync.WaitGroup
		mutex    sync.Mutex
		all      []time.Duration
		failures error
	)
	end := time.Now().Add(howLong)
	for range clients {
		client, err := first.Clone()
		if err != nil {
			return err
		}
		group.Go(func() {
			defer client.Close()
			var mine []time.Duration
			for time.Now().Before(end) {
				begun := time.Now()
				if _, err := client.Get(created.UniqueIdentifier).ExecContext(ctx); err != nil {
					mutex.Lock()
					failures = err
					mutex.Unlock()
					return
				}
				mine = append(mine, time.Since(begun))
			}
			mutex.Lock()
			defer mutex.Unlock()
			all = append(all, mine...)
		})
	}
	group.Wait()
	if failures != nil {
		return failures
	}
	slices.Sort(all)
	at := func(share float64) time.Duration { return all[int(share*float64(len(all)-1))] }
	fmt.Printf("throughput: %.0f Get/s, p50 %v, p99 %v, %d clients\n",
		float64(len(all))/howLong.Seconds(), at(0.5), at(0.99), clients)
	return nil
}
