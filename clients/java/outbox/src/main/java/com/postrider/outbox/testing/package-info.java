/** Starts a relay for the tests of an application, and returns the messages that it sends. */
package com.postrider.outbox.testing;
