{{/*
Templates for a chart that depends on this one (workload.kind: None) and runs Postrider in its own pods. Each takes the
context of this chart:

  initContainers:
    - {{ include "postrider.sidecar.container" .Subcharts.postrider | indent 10 | trim }}
  volumes:
    {{- include "postrider.sidecar.volumes" .Subcharts.postrider | nindent 8 }}

An entry of initContainers with restartPolicy Always (a native sidecar). Kubernetes starts it before the application and
stops it after the application, so that the last records of the application are relayed.
*/}}
{{- define "postrider.sidecar.container" -}}
restartPolicy: Always
{{ include "postrider.container.run" (dict "root" . "static" false) }}
securityContext:
  {{- /* The application owns the pod's security context, so ours is repeated here. */}}
  {{- $pod := omit .Values.podSecurityContext "fsGroup" "fsGroupChangePolicy" "supplementalGroups" "supplementalGroupsPolicy" "sysctls" }}
  {{- mergeOverwrite $pod .Values.securityContext | toYaml | nindent 2 }}
{{- end }}

{{/* Readable for every container of the pod (0444): the application decides on fsGroup. */}}
{{- define "postrider.sidecar.volumes" -}}
{{- include "postrider.container.volumes" (dict "root" . "static" false "mode" 292) -}}
{{- end }}

{{/* Annotations of the pod: they change with the configuration, so that the pod restarts. */}}
{{- define "postrider.sidecar.annotations" -}}
checksum/postrider-config: {{ include "postrider.checksum" . }}
{{- end }}

{{/* Seconds that Postrider may take to stop. Add them to the grace period of the application. */}}
{{- define "postrider.sidecar.stopSeconds" -}}
{{ include "postrider.terminationGracePeriodSeconds" . }}
{{- end }}
