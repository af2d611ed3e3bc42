// Drives a KMIP server with github.com/ovh/kmip-go's client over mutual TLS: a third-party client
// against our server.
//
//	client --address HOST:PORT --ca ca.pem --cert client.pem --key client.key [--version 1.1] SCENARIO…
//
// Scenarios: vcenter (the calls of a vCenter 7, at KMIP 1.1), life-cycle, register, wrapped-get, batch, throughput.
// Prints "ok SCENARIO" for each, or the error, and then exits with status 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipclient"
)

// deadline of one scenario, so that a server that hangs fails it.
const deadline = 30 * time.Second

func main() {
	address := flag.String("address", "", "the server")
	ca := flag.String("ca", "", "PEM file of the authority of its certificate")
	cert := flag.String("cert", "", "PEM file of the client's certificate")
	key := flag.String("key", "", "PEM file of its key")
	version := flag.String("version", "", "protocol version; none: the highest of both")
	clients := flag.Int("clients", 8, "throughput: connections")
	seconds := flag.Int("seconds", 5, "throughput: how long")
	flag.Parse()

	options := []kmipclient.Option{kmipclient.WithRootCAFile(*ca), kmipclient.WithClientCertFiles(*cert, *key)}
	if *version != "" {
		options = append(options, kmipclient.EnforceVersion(parseVersion(*version)))
	}
	scenarios := map[string]func(context.Context, *kmipclient.Client) error{
		"vcenter": vcenter, "life-cycle": lifeCycle, "register": register, "wrapped-get": wrappedGet, "batch": batch,
	}
	for _, name := range flag.Args() {
		if name == "throughput" {
			if err := throughput(*address, options, *clients, time.Duration(*seconds)*time.Second); err != nil {
				fail(name, err)
			}
			continue
		}
		run, ok := scenarios[name]
		if !ok {
			fail(name, fmt.Errorf("there is no such scenario"))
		}
		with := options
		if name == "vcenter" {
			with = append(with, kmipclient.WithKmipVersions(kmip.V1_1))
		}
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		client, err := kmipclient.DialContext(ctx, *address, with...)
		if err != nil {
			fail(name, err)
		}
		if err := run(ctx, client); err != nil {
			fail(name, err)
		}
		_ = client.Close()
		cancel()
		fmt.Println("ok", name)
	}
}

func parseVersion(text string) kmip.ProtocolVersion {
	var version kmip.ProtocolVersion
	if _, err := fmt.Sscanf(text, "%d.%d", &version.ProtocolVersionMajor, &version.ProtocolVersionMinor); err != nil {
		fail(text, err)
	}
	return version
}

func fail(scenario string, err error) {
	fmt.Printf("failed %s: %v\n", scenario, err)
	os.Exit(1)
}
