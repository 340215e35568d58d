package com.postrider.spring;

import com.mongodb.ConnectionString;
import com.mongodb.MongoClientSettings;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import com.postrider.outbox.Outbox;
import org.bson.UuidRepresentation;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.data.mongodb.MongoDatabaseFactory;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.SimpleMongoClientDatabaseFactory;
import org.springframework.transaction.annotation.EnableTransactionManagement;

/** Spring Boot makes the first three beans itself. */
@Configuration
@EnableTransactionManagement
public class ShopConfiguration {
    @Bean
    public MongoClient mongoClient(@Value("${mongodb.uri}") String uri) {
        return MongoClients.create(MongoClientSettings.builder()
                .applyConnectionString(new ConnectionString(uri))
                .uuidRepresentation(UuidRepresentation.STANDARD)
                .build());
    }

    @Bean
    public MongoDatabaseFactory mongoDatabaseFactory(MongoClient client, @Value("${mongodb.uri}") String uri) {
        return new SimpleMongoClientDatabaseFactory(client, new ConnectionString(uri).getDatabase());
    }

    @Bean
    public MongoTemplate mongoTemplate(MongoDatabaseFactory databases) {
        return new MongoTemplate(databases);
    }

    /** Without this bean {@code @Transactional} begins no transaction in MongoDB. */
    @Bean
    public SessionTransactionManager transactionManager(MongoDatabaseFactory databases) {
        return new SessionTransactionManager(databases);
    }

    @Bean
    public SpringOutbox outbox(
            MongoClient client, MongoDatabaseFactory databases, SessionTransactionManager transactions) {
        Outbox outbox = Outbox.of(databases.getMongoDatabase());
        outbox.probe(client); // Fails at the start where an outbox cannot work.
        return new SpringOutbox(outbox, transactions);
    }

    @Bean
    public OrderService orderService(MongoTemplate mongo, SpringOutbox outbox) {
        return new OrderService(mongo, outbox, new Payloads());
    }
}
