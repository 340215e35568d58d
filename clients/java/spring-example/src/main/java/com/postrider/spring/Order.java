package com.postrider.spring;

import java.util.List;
import java.util.UUID;
import org.springframework.data.annotation.Id;
import org.springframework.data.mongodb.core.mapping.Document;

@Document("orders")
public record Order(@Id String number, UUID customer, List<Line> lines) {
    public record Line(String product, int quantity) {}
}
