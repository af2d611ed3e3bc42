// A KMIP server made of github.com/ovh/kmip-go's parts, over mutual TLS: the second peer of our client.
//
//	server --listen 127.0.0.1:0 --ca ca.pem --cert server.pem --key server.key [--store DIR] [--versions 1.0,1.1]
//
// Without --store objects live in memory. With it each object is a file there, so two servers over
// one directory are the two nodes of a cluster, and a restarted server finds its objects again.
// Prints "listening on ADDRESS" on stdout when it serves.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/ovh/kmip-go"
	"github.com/ovh/kmip-go/kmipserver"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	ca := flag.String("ca", "", "PEM file of the authority of client certificates")
	cert := flag.String("cert", "", "PEM file of the server's certificate")
	key := flag.String("key", "", "PEM file of its key")
	directory := flag.String("store", "", "directory of objects; none: in memory")
	versions := flag.String("versions", "", "protocol versions, such as 1.0,1.1; kmip-go then lists them lowest first")
	without := flag.String("without", "", "operations to refuse as not supported, such as DiscoverVersions")
	withParent := flag.Bool("with-parent", false, "end when stdin closes, as it does when whoever started this ends")
	flag.Parse()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))

	executor := kmipserver.NewBatchExecutor()
	if *versions != "" {
		executor.SetSupportedProtocolVersions(parseVersions(*versions)...)
	}
	(&service{objects: newStore(*directory)}).route(executor, strings.Split(*without, ","))

	listener, err := tls.Listen("tcp", *listen, tlsConfig(*ca, *cert, *key))
	if err != nil {
		log.Fatal(err)
	}
	server := kmipserver.NewServer(listener, executor)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		_ = server.Shutdown()
	}()
	if *withParent {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	fmt.Printf("listening on %s\n", listener.Addr())
	if err := server.Serve(); !errors.Is(err, kmipserver.ErrShutdown) {
		log.Fatal(err)
	}
}

func parseVersions(text string) []kmip.ProtocolVersion {
	var versions []kmip.ProtocolVersion
	for part := range strings.SplitSeq(text, ",") {
		var version kmip.ProtocolVersion
		if _, err := fmt.Sscanf(part, "%d.%d", &version.ProtocolVersionMajor, &version.ProtocolVersionMinor); err != nil {
			log.Fatalf("%q is no protocol version: %v", part, err)
		}
		versions = append(versions, version)
	}
	return versions
}

func tlsConfig(ca, cert, key string) *tls.Config {
	authority, err := os.ReadFile(ca)
	if err != nil {
		log.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		log.Fatalf("%s holds no certificate", ca)
	}
	certificate, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		log.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    roots,
		MinVersion:   tls.VersionTLS12,
	}
}
