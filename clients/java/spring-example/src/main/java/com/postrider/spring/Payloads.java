package com.postrider.spring;

import org.bson.Document;
import org.springframework.data.mongodb.core.convert.DefaultMongoTypeMapper;
import org.springframework.data.mongodb.core.convert.MappingMongoConverter;
import org.springframework.data.mongodb.core.convert.NoOpDbRefResolver;
import org.springframework.data.mongodb.core.mapping.MongoMappingContext;

/** Converts objects to payloads, without the field {@code _class} that Spring Data adds to documents. */
public class Payloads {
    private final MappingMongoConverter converter =
            new MappingMongoConverter(NoOpDbRefResolver.INSTANCE, new MongoMappingContext());

    public Payloads() {
        converter.setTypeMapper(new DefaultMongoTypeMapper(null));
        converter.afterPropertiesSet();
    }

    public Document of(Object object) {
        Document payload = new Document();
        converter.write(object, payload);
        return payload;
    }
}
