{{/* Egress of the relay, the schema Job and the test. */}}
{{- define "postrider.egress" -}}
{{- $values := .Values.networkPolicy -}}
# DNS.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- ports:
    {{- range $values.egressPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
  {{- with $values.egressTo }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- with $values.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end }}
