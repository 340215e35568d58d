#!/usr/bin/env bash
# Packs the modules as Go's module proxy does, installs them into an empty project, and enqueues a record there.
#
#   clients/go/check-package.sh    needs POSTRIDER_TEST_MONGODB_URI, and PATH with Go
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=v0.1.0 # what otel/go.mod requires
: "${POSTRIDER_TEST_MONGODB_URI:?is not set; eval \"\$(scripts/services.sh env)\" sets it}"

folder=$(mktemp -d)
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
modules=$(go env GOMODCACHE)
go -C "$here/tools" run ./modproxy "$folder/proxy" "$version" "$here" "$here/otel"

mkdir "$folder/project" && cd "$folder/project"
# A cache of its own, so that no earlier package of this version is found. What the packages depend on comes from the
# machine's cache, as far as it is there; its checksums are those of the packages.
export GOMODCACHE=$folder/modules GOFLAGS=-mod=mod GONOSUMDB=github.com/postrider/postrider GOWORK=off
GOPROXY=file://$folder/proxy,file://$modules/cache/download,$(go env GOPROXY)
export GOPROXY
go mod init example.com/project 2>/dev/null
cat "$here/go.sum" "$here/otel/go.sum" >go.sum
cat >main.go <<'GO'
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	outbox "github.com/postrider/postrider/clients/go"
	outboxotel "github.com/postrider/postrider/clients/go/otel"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	client, err := mongo.Connect(options.Client().ApplyURI(os.Getenv("POSTRIDER_TEST_MONGODB_URI")))
	if err != nil {
		return err
	}
	db := client.Database("go_package_" + bson.NewObjectID().Hex())
	defer func() { _ = db.Drop(ctx) }()
	box := outbox.New(db, outbox.WithHeaderHook(outboxotel.TraceContext))
	if err := box.Probe(ctx); err != nil {
		return err
	}
	record, err := outbox.NewRecord("OrderCreated", bson.M{"order": 7}, outbox.WithKey("order-7"))
	if err != nil {
		return err
	}
	session, err := client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(ctx)
	if _, err := session.WithTransaction(ctx, func(ctx context.Context) (any, error) {
		return box.Enqueue(ctx, record)
	}); err != nil {
		return err
	}
	stored := bson.M{"_id": record.ID(), "key": "order-7", "status": "pending", "seq": bson.M{"$gt": bson.Timestamp{}}}
	n, err := db.Collection("outbox_records").CountDocuments(ctx, stored)
	if err == nil && n != 1 {
		err = fmt.Errorf("%d records, expected 1", n)
	}
	return err
}
GO
library=github.com/postrider/postrider/clients/go
go get "$library@$version" "$library/otel@$version" 2>get.log || { cat get.log >&2; exit 1; }
go run .
echo "the packed modules work in an empty project"
