// Package outboxotel puts the trace of OpenTelemetry into the headers of records.
//
//	box := outbox.New(db, outbox.WithHeaderHook(outboxotel.TraceContext))
//
// The headers are taken from the context of Enqueue, and Postrider sends them as they are: a consumer that reads
// traceparent continues the trace of the request that made the change.
package outboxotel

import (
	"context"

	outbox "github.com/postrider/postrider/clients/go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.opentelemetry.io/otel/propagation"
)

// TraceContext is a [outbox.HeaderHook]: it returns the headers traceparent and tracestate (W3C Trace Context) of the
// span in ctx, and none where ctx has no span.
func TraceContext(ctx context.Context) bson.D {
	return inject(ctx, propagation.TraceContext{})
}

// Propagate returns a hook with the headers of another propagator, such as otel.GetTextMapPropagator().
func Propagate(propagator propagation.TextMapPropagator) outbox.HeaderHook {
	return func(ctx context.Context) bson.D { return inject(ctx, propagator) }
}

func inject(ctx context.Context, propagator propagation.TextMapPropagator) bson.D {
	var headers carrier
	propagator.Inject(ctx, &headers)
	return bson.D(headers)
}

// carrier collects headers in the order in which a propagator sets them.
type carrier bson.D

func (c *carrier) Get(name string) string {
	for _, header := range *c {
		if header.Key == name {
			return header.Value.(string) // Set writes nothing else
		}
	}
	return ""
}

func (c *carrier) Set(name, value string) {
	for i := range *c {
		if (*c)[i].Key == name {
			(*c)[i].Value = value
			return
		}
	}
	*c = append(*c, bson.E{Key: name, Value: value})
}

func (c *carrier) Keys() []string {
	var names []string
	for _, header := range *c {
		names = append(names, header.Key)
	}
	return names
}
