// Package shop has a unit of work: a command changes an aggregate and dispatches its events in one transaction. The
// application knows neither MongoDB nor the outbox.
package shop

import (
	"context"
	"crypto/rand"
	"fmt"
)

// Event is something that happened in the domain. Its id is made with it.
type Event struct {
	ID   string
	Name string
	Body any
}

// Order is an aggregate, with the events that no command has dispatched yet.
type Order struct {
	ID     string
	Total  int
	Events []Event
}

type orderCreated struct {
	Order string `bson:"order"`
	Total int    `bson:"total"`
}

// NewOrder makes an order, and the event that says so.
func NewOrder(id string, total int) *Order {
	created := Event{ID: rand.Text(), Name: "OrderCreated", Body: orderCreated{id, total}}
	return &Order{ID: id, Total: total, Events: []Event{created}}
}

// docs:begin unit-of-work

// UnitOfWork runs a function in one transaction. All that the function does with its context, and with no other, is
// committed, or nothing is. The function may be called again, so it must do nothing else.
type UnitOfWork interface {
	Run(ctx context.Context, f func(ctx context.Context) error) error
}

// Orders stores orders.
type Orders interface {
	Create(ctx context.Context, order *Order) error
}

// Dispatcher dispatches the events of an aggregate, in their order.
type Dispatcher interface {
	Dispatch(ctx context.Context, aggregate string, events ...Event) error
}

// CreateOrderHandler handles the command that creates an order.
type CreateOrderHandler struct {
	Work   UnitOfWork
	Orders Orders
	Events Dispatcher
}

// Handle creates an order and dispatches its events.
func (h CreateOrderHandler) Handle(ctx context.Context, id string, total int) (*Order, error) {
	order := NewOrder(id, total) // outside: a repetition dispatches the same event, and not another one
	err := h.Work.Run(ctx, func(ctx context.Context) error {
		if err := h.Orders.Create(ctx, order); err != nil {
			return fmt.Errorf("failed to create order %s: %w", id, err)
		}
		return h.Events.Dispatch(ctx, order.ID, order.Events...)
	})
	if err != nil {
		return nil, err
	}
	return order, nil
}

// docs:end unit-of-work
